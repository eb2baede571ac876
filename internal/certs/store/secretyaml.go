package store

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
)

// SecretMeta has the name and the layout of a CA's Secret.
type SecretMeta struct {
	Namespace, Name string
	Layout          Layout
}

// ReadSecretFiles returns the files of the Secret for the CA in a directory. It refuses a
// directory with the CAs of several clusters.
func ReadSecretFiles(dir string, layout Layout, now time.Time) ([]files.File, error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s: there is no such directory", dir)
	}
	m, err := Read(dir)
	if err != nil {
		return nil, err
	}
	clusters, err := Clusters(dir)
	if err != nil {
		return nil, err
	}
	if len(clusters) > 0 && !HasAuthority(dir) {
		return nil, fmt.Errorf("%s has a directory for the CA of each cluster: name one, such as %s, or write all with --apply --context",
			dir, filepath.Join(dir, string(clusters[0])))
	}
	authority, _, err := m.Authority(verify.Options{Now: now})
	if err != nil {
		return nil, err
	}
	crl, err := m.Revocations(verify.Options{Now: now})
	if err != nil {
		return nil, err
	}
	set, err := SecretFiles(authority, crl.PEM, layout)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return set, nil
}

// SecretFiles returns the files of a CA for a Secret. It includes the revocation lists
// unless crl is empty, and fails if the layout has no place for them.
func SecretFiles(a *certs.Authority, crl []byte, layout Layout) ([]files.File, error) {
	set, err := Files(a)
	if err != nil {
		return nil, err
	}
	switch layout {
	case LayoutIstio:
		if len(crl) > 0 {
			set = append(set, files.File{Name: CRLFile, Data: crl, Mode: files.Public})
		}
		return set, nil
	case LayoutTLS:
		if len(crl) > 0 {
			return nil, fmt.Errorf("there is %s, for which the layout %q has no place; use %q", CRLFile, layout, LayoutIstio)
		}
		chain := a.Chain
		if len(chain) == 0 {
			chain = []*x509.Certificate{a.Cert}
		}
		return []files.File{
			{Name: TLSCertFile, Data: certs.EncodeCerts(chain...), Mode: files.Public},
			{Name: tlsKeyFile, Data: set[1].Data, Mode: files.Secret},
			{Name: tlsRootsFile, Data: certs.EncodeCerts(a.Roots...), Mode: files.Public},
		}, nil
	}
	return nil, fmt.Errorf("unknown layout %q: want %s or %s", layout, LayoutIstio, LayoutTLS)
}

// EncodeSecret encodes files as a Kubernetes Secret in YAML.
func EncodeSecret(s SecretMeta, set []files.File) ([]byte, error) {
	type metadata struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	}
	doc := struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   metadata          `yaml:"metadata"`
		Type       string            `yaml:"type"`
		Data       map[string]string `yaml:"data"`
	}{"v1", "Secret", metadata{s.Name, s.Namespace}, "Opaque", map[string]string{}}
	if s.Layout == LayoutTLS {
		doc.Type = "kubernetes.io/tls"
	}
	for _, f := range set {
		doc.Data[f.Name] = base64.StdEncoding.EncodeToString(f.Data)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(doc), e.Close()); err != nil {
		return nil, fmt.Errorf("encode Secret: %w", err)
	}
	return b.Bytes(), nil
}
