package xdsgen

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Secrets is what one stream may be given: what it asked for by name, as far
// as its caller may have it. It is the view of those secrets, which streams
// whose callers may have the same and ask for the same share. No other view
// reads secrets.
//
// All that decides comes from the authenticated caller. The zero Secrets is
// that of a caller who proved nothing: it is given nothing.
type Secrets struct {
	// cluster and namespace are where the caller was proved to run.
	cluster   mesh.ClusterID
	namespace string
	// configCluster says that cluster is the one whose configuration counts.
	configCluster bool
	// keys says that the caller may be given private keys.
	keys  bool
	names *xdswire.NameSet
}

// AssignSecrets is what a caller may be given of the secrets of those names.
// keys says whether private keys may be among it.
func AssignSecrets(s *snapshot.Snapshot, caller mesh.Caller, keys bool, names *xdswire.NameSet) Secrets {
	if caller.Identity == (mesh.Identity{}) || caller.Cluster == "" {
		return Secrets{}
	}
	return Secrets{
		cluster: caller.Cluster, namespace: caller.Identity.Namespace,
		configCluster: caller.Cluster == s.Mesh.LocalCluster, keys: keys, names: names,
	}
}

// Type implements View.
func (v Secrets) Type() string { return xdswire.SecretType }

// Reads implements View.
func (v Secrets) Reads() snapshot.Kinds { return snapshot.SecretFacts }

// Units implements View.
func (v Secrets) Units(s *snapshot.Snapshot, yield func(string, Unit)) {
	for _, name := range v.names.Names() {
		v.unit(s, name, yield)
	}
}

// Touched implements View.
func (v Secrets) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, Unit)) {
	own := snapshot.SecretKey(v.cluster, v.namespace, "")
	for key := range c.Secrets {
		object, ok := strings.CutPrefix(key, own)
		if !ok {
			continue
		}
		for _, prefix := range []string{secretPrefix, secretPrefix + v.namespace + "/", gatewaySecretPrefix + v.namespace + "/"} {
			for _, suffix := range []string{"", caSuffix} {
				if name := prefix + object + suffix; v.names.Has(name) {
					v.unit(s, name, yield)
				}
			}
		}
	}
}

func (v Secrets) unit(s *snapshot.Snapshot, name string, yield func(string, Unit)) {
	secret, ca, err := v.find(s, name)
	if err != nil {
		yield(name, nil)
		return
	}
	yield(name, secretUnit{secret: secret, name: name, ca: ca})
}

// Check is why a name is not given, or what is wrong with what is given; nil
// when all is well.
func (v Secrets) Check(s *snapshot.Snapshot, name string, now time.Time) error {
	secret, ca, err := v.find(s, name)
	if err != nil {
		return err
	}
	var from, until time.Time
	if ca {
		from, until = secret.CA.NotBefore, secret.CA.NotAfter
	} else {
		from, until = secret.Pair.NotBefore, secret.Pair.NotAfter
	}
	switch {
	case now.After(until):
		return fmt.Errorf("secret %s/%s is given though its certificate expired at %s", secret.Namespace, secret.Name, until.UTC().Format(time.RFC3339))
	case now.Before(from):
		return fmt.Errorf("secret %s/%s is given though its certificate is valid from %s only", secret.Namespace, secret.Name, from.UTC().Format(time.RFC3339))
	}
	return nil
}

// ErrKeysDenied says that a caller may not be given private keys.
var ErrKeysDenied = errors.New("the proxy is not authorized to read secrets")

// ErrUndecided says that it is not known yet whether a caller may be given
// private keys.
var ErrUndecided = errors.New("the right of the proxy to read secrets is being asked for")

// Forms of names of secrets, as Istio has them.
const (
	secretPrefix        = "kubernetes://"
	gatewaySecretPrefix = "kubernetes-gateway://"
	// caSuffix asks for the CA certificates only.
	caSuffix = "-cacert"
)

// parseSecretName takes a name apart. The namespace is empty when the name has
// none, which stands for the caller's own.
func parseSecretName(name string) (namespace, object string, gateway bool, err error) {
	rest, ok := strings.CutPrefix(name, secretPrefix)
	if !ok {
		if rest, gateway = strings.CutPrefix(name, gatewaySecretPrefix); !gateway {
			return "", "", false, errors.New("is not a name that is served: want kubernetes://name or kubernetes://namespace/name")
		}
	}
	object = rest
	if ns, o, qualified := strings.Cut(rest, "/"); qualified {
		if namespace, object = ns, o; !mesh.IsDNSLabel(namespace) {
			return "", "", false, errors.New("names no namespace that can be")
		}
	} else if gateway {
		return "", "", false, errors.New("names no namespace: want kubernetes-gateway://namespace/name")
	}
	if !mesh.IsDNSName(object) {
		return "", "", false, errors.New("names no secret that can be")
	}
	return namespace, object, gateway, nil
}

// find is the secret behind a name if the caller may have it. ca says that only
// its CA certificates are meant.
func (v Secrets) find(s *snapshot.Snapshot, name string) (secret *snapshot.Secret, ca bool, err error) {
	if v.cluster == "" {
		return nil, false, errors.New("secrets are given only over TLS, to callers whose identity and cluster are proved")
	}
	namespace, object, gateway, err := parseSecretName(name)
	ca = strings.HasSuffix(object, caSuffix)
	switch {
	case err != nil:
		return nil, ca, err
	case namespace != "" && namespace != v.namespace:
		return nil, ca, fmt.Errorf("is of another namespace than the proxy, which is of %s", v.namespace)
	case gateway && !v.configCluster:
		return nil, ca, fmt.Errorf("is of another cluster than the proxy, which is of %s", v.cluster)
	case !ca && !v.keys:
		return nil, ca, ErrKeysDenied
	}
	get := func(object string) *snapshot.Secret {
		return s.Secrets.Get(snapshot.SecretKey(v.cluster, v.namespace, object))
	}
	secret = get(object)
	if secret == nil && ca {
		object = strings.TrimSuffix(object, caSuffix)
		secret = get(object)
	}
	switch {
	case secret == nil:
		return nil, ca, fmt.Errorf("secret %s/%s not found", v.namespace, object)
	case ca && secret.CA == nil:
		return nil, ca, errors.New(secret.NoCA)
	case !ca && secret.Pair == nil:
		return nil, ca, errors.New(secret.NoPair)
	}
	return secret, ca, nil
}

// secretUnit is one resource made of a secret. Secrets of two namespaces or
// clusters are never one fact, so their units are never equal.
type secretUnit struct {
	secret *snapshot.Secret
	name   string
	ca     bool
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
	if u.ca {
		m.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(u.secret.CA.Roots), Crl: inline(u.secret.CA.CRL),
		}}
	} else {
		m.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(u.secret.Pair.Chain), PrivateKey: inline(u.secret.Pair.Key.PEM()),
			OcspStaple: inline(u.secret.Pair.OCSP),
		}}
	}
	r, err := enc.Resource(xdswire.SecretType, u.name, m)
	if err != nil {
		// The encoder's own words might repeat what it could not encode.
		return nil, fmt.Errorf("secret %s/%s cannot be encoded", u.secret.Namespace, u.secret.Name)
	}
	return []*xdswire.Resource{r}, nil
}
