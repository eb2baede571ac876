package inspect

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Limits of documents.
const (
	maxDocuments = 10_000 // of one text, items of lists among them
	maxKeys      = 10_000 // of one Secret
)

// documents reads the Secrets, ConfigMaps and kubeconfigs of a YAML stream. It
// ignores other documents.
func (l *Loader) documents(place string, data []byte) error {
	n := 0
	for chunk := range yamldoc.Split(data) {
		doc, err := yamldoc.Parse(chunk)
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		docs := []yamldoc.Value{doc}
		if items, ok := doc.Get("items").Items(); ok && strings.HasSuffix(doc.Get("kind").Text(), "List") {
			docs = items
		}
		if n += len(docs); n > maxDocuments {
			return fmt.Errorf("%s: more than %d documents", place, maxDocuments)
		}
		for _, d := range docs {
			if err := l.document(place, d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *Loader) document(place string, d yamldoc.Value) error {
	kind, meta := d.Get("kind").Text(), d.Get("metadata")
	name := meta.Get("name").Text()
	if ns := meta.Get("namespace").Text(); ns != "" {
		name = ns + "/" + name
	}
	switch kind {
	case "Config":
		return l.kubeconfig(place, d)
	case "Secret", "ConfigMap":
		place = fmt.Sprintf("%s: %s %s", place, kind, name)
	default:
		return nil
	}
	values, err := valuesOf(place, kind, d)
	if err != nil {
		return err
	}
	var fs []verify.File
	for _, v := range values {
		at := place + ", " + v.key
		switch {
		case v.err == nil && meta.Get("labels").Get("istio/multiCluster").Text() == "true":
			if err := l.remote(at, v.data); err != nil {
				return err
			}
		case v.err == nil && v.key == "token" && d.Get("type").Text() == "kubernetes.io/service-account-token":
			l.token(at, name, string(v.data))
		case v.err != nil, verify.KnownName(v.key), formatOf(v.data) == pemText:
			fs = append(fs, fileOf(v.key, at, v.data, v.err))
		}
	}
	if len(fs) == 0 {
		return nil
	}
	return l.add(verify.Arrange(place, fs))
}

// secretValue is the value of one key of a Secret or ConfigMap.
type secretValue struct {
	key  string
	data []byte
	err  error
}

// valuesOf decodes the values of a Secret or ConfigMap. As in Kubernetes,
// stringData overrides data.
func valuesOf(place, kind string, d yamldoc.Value) ([]secretValue, error) {
	plain, coded := d.Get("stringData"), d.Get("data")
	if kind == "ConfigMap" {
		plain, coded = d.Get("data"), d.Get("binaryData")
	}
	keys, codedKeys := plain.Keys(), coded.Keys()
	if len(keys)+len(codedKeys) > maxKeys {
		return nil, fmt.Errorf("%s: more than %d keys", place, maxKeys)
	}
	var out []secretValue
	seen := make(map[string]bool, len(keys))
	for _, k := range keys {
		seen[k] = true
		out = append(out, secretValue{key: k, data: []byte(plain.Get(k).Text())})
	}
	for _, k := range codedKeys {
		if seen[k] {
			continue
		}
		data, err := decode(coded.Get(k))
		out = append(out, secretValue{k, data, err})
	}
	return out, nil
}

// fileOf parses the PEM of a value. err is the reason why the value could not be read.
func fileOf(name, place string, data []byte, err error) verify.File {
	var f verify.File
	if err == nil {
		f, err = pemFile(name, place, "", data)
	}
	if err != nil {
		return unreadable(name, place, err)
	}
	return f
}

// decode reads standard base64, with or without line breaks.
func decode(v yamldoc.Value) ([]byte, error) {
	text := v.Text()
	if base64.StdEncoding.DecodedLen(len(text)) > maxPEM {
		return nil, fmt.Errorf("it has more than %d MiB", maxPEM>>20)
	}
	data, err := decodeText([]byte(text))
	if err != nil {
		return nil, errors.New("it is not base64")
	}
	return data, nil
}

func decodeText(text []byte) ([]byte, error) {
	return base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
}

// remote reads the kubeconfig in one key of a remote secret.
func (l *Loader) remote(place string, data []byte) error {
	for chunk := range yamldoc.Split(data) {
		doc, err := yamldoc.Parse(chunk)
		if err != nil {
			return l.add(verify.Set{Place: place, Files: []verify.File{unreadable(place, place, err)}})
		}
		if err := l.kubeconfig(place, doc); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig reads the tokens of users and the certificates of clusters and users.
// Each cluster and user is a set of its own, as they are unrelated.
func (l *Loader) kubeconfig(place string, d yamldoc.Value) error {
	clusters, _ := d.Get("clusters").Items()
	users, _ := d.Get("users").Items()
	if len(clusters)+len(users) > maxKeys {
		return fmt.Errorf("%s: more than %d clusters and users", place, maxKeys)
	}
	for _, c := range clusters {
		at := fmt.Sprintf("%s, cluster %s", place, c.Get("name").Text())
		if err := l.inline(at, c.Get("cluster"), "certificate-authority-data"); err != nil {
			return err
		}
	}
	for _, u := range users {
		user := u.Get("user")
		at := fmt.Sprintf("%s, user %s", place, u.Get("name").Text())
		if raw := user.Get("token").Text(); raw != "" {
			l.token(at, u.Get("name").Text(), raw)
		}
		if err := l.inline(at, user, "client-certificate-data", "client-key-data"); err != nil {
			return err
		}
	}
	return nil
}

// inline adds the values of the fields as one set.
func (l *Loader) inline(place string, of yamldoc.Value, fields ...string) error {
	var fs []verify.File
	for _, name := range fields {
		v := of.Get(name)
		if v.IsNull() {
			continue
		}
		at := place + ", " + name
		data, err := decode(v)
		fs = append(fs, fileOf(name, at, data, err))
	}
	if len(fs) == 0 {
		return nil
	}
	return l.add(verify.Set{Place: place, Files: fs})
}

func (l *Loader) token(place, name, raw string) {
	t := Token{Place: place, Name: name}
	switch p, err := remotesecret.ReadToken(strings.TrimSpace(raw)); {
	case err != nil:
		t.Fault = strings.TrimPrefix(err.Error(), "token: ")
	default:
		t.Expires = p.Expiry
		if p.Subject != "" {
			t.Name = p.Subject
		}
	}
	l.found.Tokens = append(l.found.Tokens, t)
}
