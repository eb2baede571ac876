package remotesecret

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Decode reads the clusters of a remote secret, sorted by id. A kubeconfig
// that cannot be read is there with its Err; the others are not touched by it.
func Decode(secret *corev1.Secret) []Cluster {
	values := make(map[string]string, len(secret.Data)+len(secret.StringData))
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	maps.Copy(values, secret.StringData) // as in an API server, these win
	clusters := make([]Cluster, 0, len(values))
	for key, value := range values {
		id := mesh.ClusterID(key)
		if secret.Name == ConfigName && key == ConfigKey && secret.Annotations[AnnotationCluster] != "" {
			id = mesh.ClusterID(secret.Annotations[AnnotationCluster])
		}
		c := decode(fmt.Sprintf("secret %s/%s, key %s", secret.Namespace, secret.Name, key), value)
		c.setID(id)
		c.Secret = secret.Namespace + "/" + secret.Name
		c.Renewed = secret.Annotations[AnnotationBoundTo] != ""
		c.Namespaces = namespaces(secret.Annotations[AnnotationNamespaces])
		c.CredentialNamespaces = namespaces(secret.Annotations[AnnotationCredentialNamespaces])
		if c.Namespaces != nil || c.CredentialNamespaces != nil {
			c.Hash = hash(value, strings.Join(c.Namespaces, ","), strings.Join(c.CredentialNamespaces, ","))
		}
		clusters = append(clusters, c)
	}
	slices.SortFunc(clusters, func(a, b Cluster) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return clusters
}

// namespaces reads the value of an annotation. What is no namespace is left
// out: the API server would not have it either.
func namespaces(list string) []string {
	var out []string
	for name := range strings.SplitSeq(list, ",") {
		if mesh.IsDNSLabel(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func (c *Cluster) setID(id mesh.ClusterID) {
	c.ID = id
	if !id.Valid() && c.Err == nil {
		c.Err = fmt.Errorf("cluster id %q: want letters, digits, '.', '-' and '_', at most 63", clip(string(id)))
	}
}

// clip shortens what others wrote for an error.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// DecodeKubeconfig reads a kubeconfig as one cluster. The id is the name that
// the current context has for its cluster, as with Istio's directory of
// kubeconfigs.
func DecodeKubeconfig(place string, text []byte) Cluster {
	c := decode(place, string(text))
	if c.Err == nil {
		c.setID(c.ID)
	}
	return c
}

// decode reads a kubeconfig. The id is the name of its cluster.
func decode(place, text string) Cluster {
	c := Cluster{Place: place, Hash: hash(text)}
	c.Err = c.read(text)
	return c
}

func hash(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:])
}

func (c *Cluster) read(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return errors.New("kubeconfig is empty")
	case len(text) > MaxSize:
		return fmt.Errorf("kubeconfig has %d bytes: want at most %d", len(text), MaxSize)
	}
	doc, config, err := readConfig(text)
	if err == nil {
		c.doc = doc
		err = c.choose(config)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}

func readConfig(text string) (yamldoc.Value, *clientcmdv1.Config, error) {
	doc, err := parse(text)
	if err != nil {
		return doc, nil, err
	}
	data, err := doc.JSON()
	if err != nil {
		return doc, nil, err
	}
	config := &clientcmdv1.Config{}
	if err := json.Unmarshal(data, config); err != nil {
		return doc, nil, err
	}
	if config.Kind != "" && config.Kind != "Config" || config.APIVersion != "" && config.APIVersion != "v1" {
		return doc, nil, fmt.Errorf("it is of kind %q, version %q: want Config, v1", clip(config.Kind), clip(config.APIVersion))
	}
	return doc, config, nil
}

// PublishedServer reads the one server of a kubeconfig without contexts, as
// the ConfigMap cluster-info of kubeadm has it.
func PublishedServer(text []byte) (clientcmdv1.Cluster, error) {
	if len(text) > MaxSize {
		return clientcmdv1.Cluster{}, fmt.Errorf("kubeconfig has %d bytes: want at most %d", len(text), MaxSize)
	}
	_, config, err := readConfig(string(text))
	if err == nil && len(config.Clusters) != 1 {
		err = fmt.Errorf("it has %d clusters, not one", len(config.Clusters))
	}
	if err != nil {
		return clientcmdv1.Cluster{}, fmt.Errorf("kubeconfig: %w", err)
	}
	return config.Clusters[0].Cluster, nil
}

// parse reads the one document of the text.
func parse(text string) (yamldoc.Value, error) {
	var found []yamldoc.Value
	for chunk := range yamldoc.Split([]byte(text)) {
		doc, err := yamldoc.Parse(chunk)
		if err != nil {
			return yamldoc.Value{}, err
		}
		if !doc.IsNull() {
			found = append(found, doc)
		}
	}
	switch {
	case len(found) > 1:
		return yamldoc.Value{}, fmt.Errorf("line %d: a second YAML document", found[1].Line())
	case len(found) == 0 || !found[0].IsMapping():
		return yamldoc.Value{}, errors.New("it is no YAML mapping")
	}
	return found[0], nil
}

// choose takes cluster and user of the current context.
func (c *Cluster) choose(config *clientcmdv1.Config) error {
	if config.CurrentContext == "" && len(config.Contexts) != 1 {
		return fmt.Errorf("current-context is not set, and there are %d contexts", len(config.Contexts))
	}
	name := config.CurrentContext
	if name == "" {
		name = config.Contexts[0].Name
	}
	i, err := find(config.Contexts, func(n clientcmdv1.NamedContext) bool { return n.Name == name })
	if err != nil {
		return fmt.Errorf("current-context %q: %w of that name in contexts", clip(name), err)
	}
	context := config.Contexts[i].Context
	i, err = find(config.Clusters, func(n clientcmdv1.NamedCluster) bool { return n.Name == context.Cluster })
	if err != nil {
		return fmt.Errorf("context %q: cluster %q: %w of that name in clusters", clip(name), clip(context.Cluster), err)
	}
	j, err := find(config.AuthInfos, func(n clientcmdv1.NamedAuthInfo) bool { return n.Name == context.AuthInfo })
	if err != nil {
		return fmt.Errorf("context %q: user %q: %w of that name in users", clip(name), clip(context.AuthInfo), err)
	}
	c.Server, c.serverAt = config.Clusters[i].Cluster, fmt.Sprintf("clusters[%d].cluster", i)
	c.User, c.userAt = config.AuthInfos[j].AuthInfo, fmt.Sprintf("users[%d].user", j)
	c.ID, c.Namespace = mesh.ClusterID(context.Cluster), context.Namespace
	return nil
}

// find returns the index of the one item that fits.
func find[T any](items []T, fits func(T) bool) (int, error) {
	i := slices.IndexFunc(items, fits)
	if i < 0 {
		return 0, errors.New("there is none")
	}
	if slices.ContainsFunc(items[i+1:], fits) {
		return 0, errors.New("there are several")
	}
	return i, nil
}

// MaxFileSize is the longest file that DecodeFile should be given, in bytes.
const MaxFileSize = 8 << 20

// maxDocuments bounds the Secrets of one file.
const maxDocuments = 1000

// DecodeFile reads the clusters of a file: Secrets, lists of Secrets and
// kubeconfigs as YAML or JSON documents. A document that cannot be read is a
// Cluster without id, with its Err.
func DecodeFile(place string, text []byte) ([]Cluster, error) {
	var clusters []Cluster
	n := 0
	for chunk := range yamldoc.Split(text) {
		doc, err := yamldoc.Parse(chunk)
		if err == nil && doc.IsNull() {
			continue
		}
		if n++; n > maxDocuments {
			return clusters, fmt.Errorf("%s: more than %d documents", place, maxDocuments)
		}
		at := fmt.Sprintf("%s:%d", place, chunk.Line)
		if err != nil {
			clusters = append(clusters, Cluster{Place: place, Err: err})
			continue
		}
		clusters = append(clusters, decodeDocument(at, doc, chunk.Text)...)
	}
	if n == 0 {
		return nil, fmt.Errorf("%s: no YAML documents", place)
	}
	return clusters, nil
}

func decodeDocument(place string, doc yamldoc.Value, text []byte) []Cluster {
	switch kind := doc.Get("kind").Text(); kind {
	case "Config":
		return []Cluster{DecodeKubeconfig(place, text)}
	case "Secret":
		return decodeSecret(place, doc)
	case "List", "SecretList":
		var clusters []Cluster
		items, _ := doc.Get("items").Items()
		for _, item := range items {
			if item.Get("kind").Text() == "Secret" || kind == "SecretList" {
				clusters = append(clusters, decodeSecret(fmt.Sprintf("%s:%d", place, item.Line()), item)...)
			}
		}
		return clusters
	default:
		return []Cluster{{Place: place, Err: fmt.Errorf("kind %q: want Secret or Config", clip(kind))}}
	}
}

func decodeSecret(place string, doc yamldoc.Value) []Cluster {
	var secret corev1.Secret
	data, err := doc.JSON()
	if err == nil {
		err = json.Unmarshal(data, &secret)
	}
	if err != nil {
		return []Cluster{{Place: place, Err: fmt.Errorf("secret: %w", err)}}
	}
	clusters := Decode(&secret)
	if len(clusters) == 0 {
		return []Cluster{{Place: place, Err: fmt.Errorf("secret %s/%s: it has no data", secret.Namespace, secret.Name)}}
	}
	for i := range clusters {
		clusters[i].Place = place + ": " + clusters[i].Place
	}
	return clusters
}
