package source

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var secretKind = kubeKind(kind{
	name: "Secret", plural: "secrets", versions: v1,
	resources: []Resource{{Use: ForCredentials, Optional: true, Without: "gateways are given no certificates"}},
}, (*conversion).secret)

// Keys of a Secret for gateways. Keys without a dot have priority.
const (
	keyCert       = "cert"
	keyKey        = "key"
	keyTLSCert    = corev1.TLSCertKey
	keyTLSKey     = corev1.TLSPrivateKeyKey
	keyOCSPStaple = "tls.ocsp-staple"
	keyCACert     = "cacert"
	keyTLSCACert  = "ca.crt"
	keyCRL        = "crl"
	keyTLSCRL     = "ca.crl"
)

// maxSecret bounds the size of a Secret's values, in bytes, as a Kubernetes API does.
const maxSecret = 1 << 20

// maxPrivateKey bounds a private key with its parameters, in bytes of PEM. An RSA key of 8,192 bits
// has 6,500; to parse larger ones takes long and much memory.
const maxPrivateKey = 16 << 10

// secret delivers Secrets of the types that may hold certificates or credentials of registries. Its faults never
// repeat the content of a Secret.
func (c *conversion) secret(o *corev1.Secret) *fields.Error {
	switch o.Type {
	case corev1.SecretTypeTLS, corev1.SecretTypeOpaque, corev1.SecretTypeDockerConfigJson, "":
	default:
		return nil
	}
	data, given := secretData(o)
	size := 0
	for _, v := range data {
		size += len(v)
	}
	if size > maxSecret {
		return fields.Faultf("data", "has %d bytes, at most %d are used", size, maxSecret)
	}
	s := &snapshot.Secret{Meta: c.meta}
	var fault *fields.Error
	if o.Type == corev1.SecretTypeDockerConfigJson {
		s.NoPair, s.NoCA = "it has credentials of registries", "it has credentials of registries"
		if s.Pull, fault = pullCredentials(data, given); fault == nil {
			c.object = s
		}
		return fault
	}
	if s.Pair, s.NoPair, fault = keyPair(data, given); fault != nil {
		return fault
	}
	s.CA, s.NoCA, fault = caBundle("secret", data, given)
	if fault != nil {
		s.NoCA = fault.Error()
		c.warn(fault)
	}
	c.object = s
	return nil
}

// maxPullCredentials bounds credentials of registries, in bytes: agents get them with each version of
// a plugin.
const maxPullCredentials = 64 << 10

// pullCredentials returns the credentials of registries.
func pullCredentials(data map[string][]byte, given func(string) string) (*snapshot.PullCredentials, *fields.Error) {
	const key = corev1.DockerConfigJsonKey
	text := data[key]
	var config struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	switch {
	case len(text) > maxPullCredentials:
		return nil, fields.Faultf(given(key), "has %d bytes, at most %d are used", len(text), maxPullCredentials)
	case !utf8.Valid(text) || json.Unmarshal(text, &config) != nil || len(config.Auths) == 0: // the error may show a part of the secret
		return nil, fields.Faultf(given(key), "has no credentials of registries: want {\"auths\": {…}}, as in Docker's config.json")
	}
	return &snapshot.PullCredentials{Config: snapshot.NewPrivateKey(text)}, nil
}

// dataField returns the path of a key of data.
func dataField(key string) string { return keyIn("data", key) }

func keyIn(field, key string) string {
	if key = fields.FieldOf(key); key[0] != '[' {
		key = "." + key
	}
	return field + key
}

// secretData returns the values of a Secret by key, and a function for the path of
// each. Values in stringData have priority.
func secretData(o *corev1.Secret) (data map[string][]byte, given func(key string) string) {
	data = maps.Clone(o.Data)
	for k, v := range o.StringData {
		if data == nil {
			data = make(map[string][]byte)
		}
		data[k] = []byte(v)
	}
	return data, func(key string) string {
		field := "data"
		if _, ok := o.StringData[key]; ok {
			field = "stringData"
		}
		return keyIn(field, key)
	}
}

// keyPair returns the certificate and the key, or the reason why there are none.
func keyPair(data map[string][]byte, given func(string) string) (*snapshot.KeyPair, string, *fields.Error) {
	for _, names := range [][2]string{{keyCert, keyKey}, {keyTLSCert, keyTLSKey}} {
		chain, key := data[names[0]], data[names[1]]
		if len(chain) == 0 || len(key) == 0 {
			continue
		}
		if len(key) > maxPrivateKey {
			return nil, "", fields.Faultf(given(names[1]), "has %d bytes: a private key has at most %d", len(key), maxPrivateKey)
		}
		p := &snapshot.KeyPair{Chain: chain, Key: snapshot.NewPrivateKey(key)}
		var err error
		if p.NotBefore, p.NotAfter, err = validity(chain); err != nil {
			return nil, "", &fields.Error{Field: given(names[0]), Err: err}
		}
		if _, err := tls.X509KeyPair(chain, key); err != nil {
			return nil, "", &fields.Error{Field: given(names[1]), Err: errors.New(keyReason(err))}
		}
		if names[0] == keyTLSCert {
			p.OCSP = data[keyOCSPStaple]
		}
		return p, "", nil
	}
	for _, names := range [][2]string{{keyCert, keyKey}, {keyTLSCert, keyTLSKey}} {
		_, chain := data[names[0]]
		if _, key := data[names[1]]; chain && key {
			return nil, fmt.Sprintf("found keys %q and %q, but they were empty", names[0], names[1]), nil
		}
	}
	return nil, fmt.Sprintf("found secret, but didn't have expected keys (%s and %s) or (%s and %s); found: %s",
		keyCert, keyKey, keyTLSCert, keyTLSKey, keysOf(data)), nil
}

// caBundle returns the CA certificates, or the reason why there are none. what names
// the kind of the object in that reason.
func caBundle(what string, data map[string][]byte, given func(string) string) (*snapshot.CABundle, string, *fields.Error) {
	for _, names := range [][2]string{{keyCACert, keyCRL}, {keyTLSCACert, keyTLSCRL}} {
		roots := data[names[0]]
		if len(roots) == 0 {
			continue
		}
		b := &snapshot.CABundle{Roots: roots, CRL: data[names[1]]}
		var err error
		if b.NotBefore, b.NotAfter, err = validity(roots); err != nil {
			return nil, "", &fields.Error{Field: given(names[0]), Err: err}
		}
		return b, "", nil
	}
	for _, name := range []string{keyCACert, keyTLSCACert} {
		if _, ok := data[name]; ok {
			return nil, fmt.Sprintf("found key %q, but it was empty", name), nil
		}
	}
	return nil, fmt.Sprintf("found %s, but didn't have expected keys %s or %s; found: %s", what, keyCACert, keyTLSCACert, keysOf(data)), nil
}

// validity returns the time in which all certificates of the PEM text are valid. The
// text must not hold anything else: proxies get all of it.
func validity(text []byte) (from, until time.Time, err error) {
	for n := 1; ; n++ {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			if n == 1 {
				return from, until, errors.New("is not a certificate in PEM")
			}
			return from, until, nil
		}
		if block.Type != "CERTIFICATE" {
			return from, until, fmt.Errorf("PEM block %d is not a certificate", n)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return from, until, fmt.Errorf("certificate %d cannot be read", n)
		}
		if n == 1 || cert.NotBefore.After(from) {
			from = cert.NotBefore
		}
		if n == 1 || cert.NotAfter.Before(until) {
			until = cert.NotAfter
		}
	}
}

// keyReason returns the reason why a key is refused. The parser's own error might
// repeat the content of the Secret.
func keyReason(err error) string {
	if strings.Contains(err.Error(), "does not match") {
		return "is not the key of the certificate"
	}
	return "is not a private key in PEM"
}

// keysOf lists the first keys.
func keysOf(data map[string][]byte) string {
	const most = 3
	keys := slices.Sorted(maps.Keys(data))
	if len(keys) <= most {
		return strings.Join(keys, ", ")
	}
	return fmt.Sprintf("%s, and %d more...", strings.Join(keys[:most], ", "), len(keys)-most)
}
