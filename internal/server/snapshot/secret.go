package snapshot

import (
	"log/slog"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// KindSecret is the kind of secrets that may hold what gateways serve with.
const KindSecret Kind = "Secret"

// Secret is a Kubernetes Secret as far as proxies may be given it: a
// certificate with its key, a bundle of CA certificates, or both.
type Secret struct {
	Meta
	Pair *KeyPair
	// NoPair says why there is no Pair.
	NoPair string
	CA     *CABundle
	// NoCA says why there is no CA.
	NoCA string
}

// Key implements Object.
func (o *Secret) Key() Key { return o.key(KindSecret) }

// KindConfigMap is the kind of ConfigMaps with CA certificates.
const KindConfigMap Kind = "CAConfigMap"

// ConfigMap is a Kubernetes ConfigMap as far as proxies are given it: a bundle
// of CA certificates.
type ConfigMap struct {
	Meta
	CA *CABundle
	// NoCA says why there is none.
	NoCA string
}

// Key implements Object.
func (o *ConfigMap) Key() Key { return o.key(KindConfigMap) }

// KeyPair is a certificate chain with the key that belongs to its first
// certificate.
type KeyPair struct {
	Chain []byte // PEM
	Key   PrivateKey
	OCSP  []byte // staple, may be empty
	// The chain is valid from NotBefore to NotAfter.
	NotBefore, NotAfter time.Time
}

// CABundle is what certificates are checked with.
type CABundle struct {
	Roots []byte // PEM
	CRL   []byte // PEM, may be empty
	// All roots are valid from NotBefore to NotAfter.
	NotBefore, NotAfter time.Time
}

// PrivateKey is a private key that shows itself nowhere but where PEM is
// called: no way of printing, logging or encoding it gives its content.
type PrivateKey struct{ pem func() []byte } // no printer calls a function that it finds in a field

// NewPrivateKey is the key of that PEM text, which belongs to it from then on.
func NewPrivateKey(pem []byte) PrivateKey { return PrivateKey{func() []byte { return pem }} }

// PEM is the key's text. It must not be changed.
func (k PrivateKey) PEM() []byte {
	if k.pem == nil {
		return nil
	}
	return k.pem()
}

const hidden = "[private key]"

// String implements fmt.Stringer.
func (k PrivateKey) String() string { return hidden }

// GoString implements fmt.GoStringer.
func (k PrivateKey) GoString() string { return hidden }

// LogValue implements slog.LogValuer.
func (k PrivateKey) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler.
func (k PrivateKey) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// SecretKey names a secret of one cluster in tables and changes.
func SecretKey(c mesh.ClusterID, namespace, name string) string {
	return string(c) + "/" + namespace + "/" + name
}

// ConfigMapPrefix begins the names under which proxies ask for ConfigMaps.
const ConfigMapPrefix = "configmap://"

// ConfigMapKey names a ConfigMap of the cluster whose configuration counts, as
// proxies ask for it and in changes, where it differs from each SecretKey.
func ConfigMapKey(namespace, name string) string { return ConfigMapPrefix + namespace + "/" + name }
