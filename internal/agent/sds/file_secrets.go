package sds

import (
	"os"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// systemRoots holds the files in which systems keep their CA certificates, as Go has them.
var systemRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// isFile reports whether a name stands for files of the machine.
func isFile(name string) bool {
	return strings.HasPrefix(name, mesh.SecretFileCertificate) || strings.HasPrefix(name, mesh.SecretFileRoots)
}

// missing is the version of a secret while a file is missing. Envoy refuses the secret, so
// that its cluster is ready and connections fail, and gets it again when the file is there.
const missing = "missing"

// fileSecret returns the secret with the paths in a name. Envoy reads the files, and again
// when they are replaced.
func fileSecret(name string) *secret {
	m := &tlsv3.Secret{Name: name}
	var ready bool
	if paths, ok := strings.CutPrefix(name, mesh.SecretFileRoots); ok {
		path, crl, revokes := strings.Cut(paths, "~")
		if path == "system" {
			path = systemRoots[max(slices.IndexFunc(systemRoots, readable), 0)]
		}
		ready = readable(path)
		rules := &tlsv3.CertificateValidationContext{TrustedCa: file(path)}
		if revokes {
			ready = ready && readable(crl)
			rules.Crl = file(crl)
		}
		m.Type = &tlsv3.Secret_ValidationContext{ValidationContext: rules}
	} else {
		chain, key, _ := strings.Cut(strings.TrimPrefix(name, mesh.SecretFileCertificate), "~")
		ready = readable(chain) && readable(key)
		m.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: file(chain), PrivateKey: file(key)}}
	}
	s := encode(m)
	if s != nil && !ready {
		s.version = missing
	}
	return s
}

func readable(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
