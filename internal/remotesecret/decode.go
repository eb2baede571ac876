package remotesecret

import (
	"bytes"
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

// Decode returns the clusters of a remote secret, sorted by id. An unreadable
// kubeconfig is a Cluster with Err.
func Decode(secret *corev1.Secret) []Cluster {
	values := make(map[string]string, len(secret.Data)+len(secret.StringData))
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	maps.Copy(values, secret.StringData) // overrides data, as in API servers
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
		c.Namespaces = c.namespaces(secret.Annotations, AnnotationNamespaces)
		c.CredentialNamespaces = c.namespaces(secret.Annotations, AnnotationCredentialNamespaces)
		if c.Namespaces != nil || c.CredentialNamespaces != nil {
			c.Hash = hash(value, strings.Join(c.Namespaces, ","), strings.Join(c.CredentialNamespaces, ","))
		}
		clusters = append(clusters, c)
	}
	slices.SortFunc(clusters, func(a, b Cluster) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return clusters
}

// namespaces parses the list in an annotation. It is nil, which means all, only without the
// annotation. An invalid name is an error.
func (c *Cluster) namespaces(annotations map[string]string, annotation string) []string {
	list, is := annotations[annotation]
	if !is {
		return nil
	}
	out := []string{}
	for name := range strings.SplitSeq(list, ",") {
		switch name = strings.TrimSpace(name); {
		case name == "" || slices.Contains(out, name):
		case mesh.IsDNSLabel(name):
			out = append(out, name)
		case c.Err == nil:
			c.Err = fmt.Errorf("annotation %s: %q is not a namespace", annotation, clip(name))
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

// clip shortens untrusted text for errors.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// DecodeKubeconfig decodes a kubeconfig as one cluster. As in Istio's directory of
// kubeconfigs, its id is the name of the cluster in the current context.
func DecodeKubeconfig(place string, text []byte) Cluster {
	c := decode(place, string(text))
	if c.Err == nil {
		c.setID(c.ID)
	}
	return c
}

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
	doc, err := yamldoc.ParseOnly([]byte(text))
	if err != nil {
		return doc, nil, err
	}
	if !doc.IsMapping() {
		if bytes.Contains(decodeBase64([]byte(text)), []byte("clusters")) {
			return doc, nil, errors.New("it is in base64: encode it once in data, and not in stringData")
		}
		return doc, nil, errors.New("it is no YAML mapping")
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

// PublishedServer returns the only server of a kubeconfig without contexts, as in
// kubeadm's ConfigMap cluster-info.
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

// choose sets the cluster and the user of the current context.
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

// find returns the index of the only item that fits.
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

// MaxFileSize is the size limit for DecodeFile in bytes.
const MaxFileSize = 8 << 20

const maxDocuments = 1000

// DecodeFile returns the clusters of a file: Secrets, lists of Secrets and kubeconfigs
// as YAML or JSON documents. An unreadable document is a Cluster with Err and without
// an id.
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
