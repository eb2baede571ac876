package snapshot

import (
	"log/slog"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Secret holds the parts of a Kubernetes Secret that proxies may get: a certificate
// with its key, CA certificates, or both; or credentials of registries.
type Secret struct {
	Meta
	Pair *KeyPair
	// NoPair is the reason if Pair is nil.
	NoPair string
	CA     *CABundle
	// NoCA is the reason if CA is nil.
	NoCA string
	// Pull holds credentials of registries, in the format of Docker's config.json; nil for none.
	Pull *PullCredentials
}

// Key implements Object.
func (o *Secret) Key() Key { return o.key(KindSecret) }

// Account is a service account of a cluster.
type Account struct {
	Cluster         mesh.ClusterID
	Namespace, Name string
}

// ConfigMap holds the CA certificates of a Kubernetes ConfigMap.
type ConfigMap struct {
	Meta
	CA *CABundle
	// NoCA is the reason if CA is nil.
	NoCA string
}

// Key implements Object.
func (o *ConfigMap) Key() Key { return o.key(KindConfigMap) }

// KeyPair is a certificate chain with the private key of its first certificate.
type KeyPair struct {
	Chain []byte // PEM
	Key   PrivateKey
	OCSP  []byte // OCSP response to staple; may be empty
	// All certificates are valid from NotBefore to NotAfter.
	NotBefore, NotAfter time.Time
}

// PullCredentials holds credentials of registries.
type PullCredentials struct{ Config PrivateKey }

// CABundle holds the CA certificates with which a proxy verifies its peers.
type CABundle struct {
	Roots []byte // PEM
	CRL   []byte // PEM, may be empty
	// All certificates are valid from NotBefore to NotAfter.
	NotBefore, NotAfter time.Time
}

// PrivateKey is a private key that only PEM reveals. Printing, logging or encoding it
// shows a placeholder.
type PrivateKey struct{ pem func() []byte } // a func, because no printer calls one

// NewPrivateKey returns the key with this PEM text, which it takes over.
func NewPrivateKey(pem []byte) PrivateKey { return PrivateKey{func() []byte { return pem }} }

// PEM returns the key's text, which the caller must not change.
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

// SecretKey returns the key of a Secret in Snapshot.Secrets and Changes.Secrets.
func SecretKey(c mesh.ClusterID, namespace, name string) string {
	return string(c) + "/" + namespace + "/" + name
}

// ConfigMapPrefix starts the SDS names of ConfigMaps, and their keys.
const ConfigMapPrefix = "configmap://"

// ConfigMapKey returns the key of a ConfigMap in Snapshot.ConfigMaps and
// Changes.Secrets, which is also its SDS name. It differs from every SecretKey.
func ConfigMapKey(namespace, name string) string { return ConfigMapPrefix + namespace + "/" + name }
