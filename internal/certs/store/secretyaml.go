package store

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
)

// Layout is a choice of names for the files of an authority in a Secret.
type Layout string

// The layouts that Istio reads.
const (
	// LayoutIstio has ca-cert.pem, ca-key.pem, cert-chain.pem, root-cert.pem
	// and, where there is one, ca-crl.pem.
	LayoutIstio Layout = "istio"
	// LayoutTLS has tls.crt (what leads from the CA to the root), tls.key and
	// ca.crt. It has no place for revocation lists.
	LayoutTLS Layout = "tls"
)

// SecretMeta says what the Secret of an authority is called.
type SecretMeta struct {
	Namespace, Name string
	Layout          Layout
}

// Names of the keys of LayoutTLS.
const (
	tlsCertFile  = "tls.crt"
	tlsKeyFile   = "tls.key"
	tlsRootsFile = "ca.crt"
)

const crlFile = "ca-crl.pem"

// SecretFiles returns what a Secret for the authority holds, with its revocation
// lists unless crl is empty. It is an error when the layout has no place for
// them.
func SecretFiles(a *certs.Authority, crl []byte, layout Layout) ([]files.File, error) {
	set, err := authorityFiles(a)
	if err != nil {
		return nil, err
	}
	switch layout {
	case LayoutIstio:
		if len(crl) > 0 {
			set = append(set, files.File{Name: crlFile, Data: crl, Mode: files.Public})
		}
		return set, nil
	case LayoutTLS:
		if len(crl) > 0 {
			return nil, fmt.Errorf("there is %s, for which the layout %q has no place; use %q", crlFile, layout, LayoutIstio)
		}
		return tlsFiles(set, a), nil
	}
	return nil, fmt.Errorf("unknown layout %q: want %s or %s", layout, LayoutIstio, LayoutTLS)
}

// tlsFiles renames the files of an authority.
func tlsFiles(set []files.File, a *certs.Authority) (out []files.File) {
	for _, f := range set {
		switch f.Name {
		case caCertFile:
			f.Name = tlsCertFile
			if len(a.Chain) > 0 {
				f.Data = certs.EncodeCerts(a.Chain...)
			}
		case caKeyFile:
			f.Name = tlsKeyFile
		case rootCertFile:
			f.Name = tlsRootsFile
		default:
			continue
		}
		out = append(out, f)
	}
	return out
}

// EncodeSecret renders files as the YAML of a Kubernetes Secret.
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
