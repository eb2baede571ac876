package units

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Secrets is the view of the secrets that one stream may get: the requested names to
// which the caller has a right. Streams with the same names and rights share it. No other
// view reads secrets.
//
// All rights come from the authenticated caller. The zero Secrets, for a caller that did
// not authenticate, is empty.
type Secrets struct {
	// Cluster and namespace are the authenticated location of the caller.
	Cluster   mesh.ClusterID
	Namespace string
	// configCluster reports whether cluster is the local cluster.
	configCluster bool
	// keys reports whether the caller may get private keys.
	keys  bool
	names *xdswire.NameSet
}

// AssignSecrets returns the view of the named secrets for a caller. keys reports
// whether the caller may get private keys.
func AssignSecrets(s *snapshot.Snapshot, caller mesh.Caller, keys bool, names *xdswire.NameSet) Secrets {
	if caller.Identity == (mesh.Identity{}) || caller.Cluster == "" {
		return Secrets{}
	}
	return Secrets{
		Cluster: caller.Cluster, Namespace: caller.Identity.Namespace,
		configCluster: caller.Cluster == s.Mesh.LocalCluster, keys: keys, names: names,
	}
}

// Type implements View.
func (v Secrets) Type() string { return xdswire.SecretType }

// Keys implements View.
func (v Secrets) Keys() Keys { return Keys{secrets: &v} }

// touched iterates over the requested names that changes may concern.
func (v Secrets) touched(c *snapshot.Changes) iter.Seq[string] {
	own := snapshot.SecretKey(v.Cluster, v.Namespace, "")
	return func(yield func(string) bool) {
		for key := range c.Secrets {
			names := []string{key}
			if !strings.HasPrefix(key, snapshot.ConfigMapPrefix) {
				object, ok := strings.CutPrefix(key, own)
				if !ok {
					continue
				}
				names = []string{SecretPrefix + object, SecretPrefix + v.Namespace + "/" + object, GatewaySecretPrefix + v.Namespace + "/" + object}
			}
			for _, name := range names {
				for _, name := range []string{name, name + CASuffix} {
					if v.names.Has(name) && !yield(name) {
						return
					}
				}
			}
		}
	}
}

// Unit implements View.
func (v Secrets) Unit(s *snapshot.Snapshot, k Key) Unit {
	c, err := v.find(s, k.Name)
	if err != nil {
		return nil
	}
	return secretUnit{name: k.Name, pair: c.pair, ca: c.ca}
}

// Check returns why a name is not served, or the fault of the certificates that are
// served. It returns nil if there is none.
func (v Secrets) Check(s *snapshot.Snapshot, name string, now time.Time) error {
	c, err := v.find(s, name)
	if err != nil {
		return err
	}
	var from, until time.Time
	if c.ca != nil {
		from, until = c.ca.NotBefore, c.ca.NotAfter
	} else {
		from, until = c.pair.NotBefore, c.pair.NotAfter
	}
	switch {
	case now.After(until):
		return fmt.Errorf("%s is served although its certificate expired at %s", c.of, until.UTC().Format(time.RFC3339))
	case now.Before(from):
		return fmt.Errorf("%s is served although its certificate is not valid before %s", c.of, from.UTC().Format(time.RFC3339))
	}
	return nil
}

// ErrKeysDenied reports that a caller may not get private keys.
var ErrKeysDenied = errors.New("the proxy is not authorized to read secrets")

// ErrUndecided reports that the right of a caller to private keys is not known yet.
var ErrUndecided = errors.New("the right of the proxy to read secrets is still being checked")

// The prefixes and the suffix of SDS names in Istio.
const (
	SecretPrefix        = "kubernetes://"
	GatewaySecretPrefix = "kubernetes-gateway://"
	ConfigMapPrefix     = snapshot.ConfigMapPrefix
	// CASuffix requests only the CA certificates.
	CASuffix = "-cacert"
)

// secretName is a parsed SDS name.
type secretName struct {
	prefix string
	// namespace is empty if the name has none, which means the caller's namespace.
	namespace, object string
	// ca reports whether the name requests CA certificates, not a key.
	ca bool
}

func parseSecretName(name string) (secretName, error) {
	for _, prefix := range []string{SecretPrefix, GatewaySecretPrefix, ConfigMapPrefix} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		n := secretName{prefix: prefix, object: rest}
		if namespace, object, qualified := strings.Cut(rest, "/"); qualified {
			if n.namespace, n.object = namespace, object; !mesh.IsDNSLabel(namespace) {
				return n, errors.New("has an invalid namespace")
			}
		} else if prefix != SecretPrefix {
			return n, fmt.Errorf("has no namespace: want %snamespace/name", prefix)
		}
		if !mesh.IsDNSName(n.object) {
			return n, errors.New("has an invalid object name")
		}
		n.ca = prefix == ConfigMapPrefix || strings.HasSuffix(n.object, CASuffix)
		return n, nil
	}
	return secretName{}, errors.New("is not a supported name: want kubernetes://name, kubernetes://namespace/name or configmap://namespace/name")
}

// AskForKeys reports whether any of the names requests a private key.
func AskForKeys(names *xdswire.NameSet) bool {
	return slices.ContainsFunc(names.Names(), func(name string) bool {
		n, err := parseSecretName(name)
		return err == nil && !n.ca
	})
}

// credential holds the key pair or the CA certificates of a name.
type credential struct {
	of   string // the object, for messages
	pair *snapshot.KeyPair
	ca   *snapshot.CABundle
}

// find returns the credential of a name if the caller may get it.
func (v Secrets) find(s *snapshot.Snapshot, name string) (credential, error) {
	if v.Cluster == "" {
		return credential{}, errors.New("secrets are served only over TLS, to callers with an authenticated identity and cluster")
	}
	n, err := parseSecretName(name)
	switch {
	case err != nil:
		return credential{}, err
	case n.prefix == ConfigMapPrefix: // CA certificates are no secret: every namespace and cluster is given them
		return n.configMap(s)
	case n.namespace != "" && n.namespace != v.Namespace:
		return credential{}, fmt.Errorf("is in another namespace than the proxy, which is in %s", v.Namespace)
	case n.prefix == GatewaySecretPrefix && !v.configCluster:
		return credential{}, fmt.Errorf("is in another cluster than the proxy, which is in %s", v.Cluster)
	case !n.ca && !v.keys:
		return credential{}, ErrKeysDenied
	}
	secret, object := lookUp(n, func(object string) *snapshot.Secret {
		return s.Secrets.Get(snapshot.SecretKey(v.Cluster, v.Namespace, object))
	})
	of := fmt.Sprintf("secret %s/%s", v.Namespace, object)
	switch {
	case secret == nil:
		return credential{}, fmt.Errorf("%s not found", of)
	case n.ca && secret.CA == nil:
		return credential{}, errors.New(secret.NoCA)
	case n.ca:
		return credential{of: of, ca: secret.CA}, nil
	case secret.Pair == nil:
		return credential{}, errors.New(secret.NoPair)
	}
	return credential{of: of, pair: secret.Pair}, nil
}

// configMap returns the credential of the name of a ConfigMap.
func (n secretName) configMap(s *snapshot.Snapshot) (credential, error) {
	m, object := lookUp(n, func(object string) *snapshot.ConfigMap {
		return s.ConfigMaps.Get(snapshot.ConfigMapKey(n.namespace, object))
	})
	of := fmt.Sprintf("configmap %s/%s", n.namespace, object)
	switch {
	case m == nil:
		return credential{}, fmt.Errorf("%s with key cacert or ca.crt not found", of)
	case m.CA == nil:
		return credential{}, errors.New(m.NoCA)
	}
	return credential{of: of, ca: m.CA}, nil
}

// lookUp returns the object with the name. If there is none, and the name ends in
// caSuffix, it returns the object with the name without the suffix.
func lookUp[T any](n secretName, get func(object string) *T) (found *T, object string) {
	object = n.object
	if found = get(object); found == nil && n.ca {
		object = strings.TrimSuffix(object, CASuffix)
		found = get(object)
	}
	return found, object
}

// secretUnit generates one resource from a Secret or ConfigMap. Objects of different
// namespaces or clusters are different facts, so their units are never equal.
type secretUnit struct {
	name string
	pair *snapshot.KeyPair
	ca   *snapshot.CABundle
}

func (u secretUnit) Type() string { return xdswire.SecretType }

func (u secretUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	inline := func(b []byte) *corev3.DataSource {
		if len(b) == 0 {
			return nil
		}
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	m := &tlsv3.Secret{Name: u.name}
	if u.ca != nil {
		m.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(u.ca.Roots), Crl: inline(u.ca.CRL),
		}}
	} else {
		m.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(u.pair.Chain), PrivateKey: inline(u.pair.Key.PEM()),
			OcspStaple: inline(u.pair.OCSP),
		}}
	}
	r, err := enc.Resource(xdswire.SecretType, u.name, m)
	if err != nil {
		// The error of the encoder might contain the secret.
		return nil, fmt.Errorf("%s cannot be encoded", u.name)
	}
	return []*xdswire.Resource{r}, nil
}
