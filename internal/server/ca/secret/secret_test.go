package secret

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/test/kube"
)

func needKubernetes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
}

// open opens the CA of a namespace and follows it until the test ends.
func open(t *testing.T, api *rest.Config, ns string) *ca.CA {
	t.Helper()
	source, err := Open(t.Context(), config(t, api, ns))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.Open(ca.Config{
		Source: source, Use: func(*ca.Set) {}, Reloaded: func(bool) {}, Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		TrustDomain: func() (string, []string) { return "cluster.local", nil }, ServerNames: []string{"istiod.istio-system.svc"},
		Alive: func(time.Time) []*certs.Authority { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func config(t *testing.T, api *rest.Config, ns string) Config {
	t.Helper()
	return Config{
		API: api, Namespace: ns, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Make: func() (map[string][]byte, error) { return store.SelfSigned("cluster.local", time.Now(), rand.Reader) },
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !is() {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal("no ", what)
		}
	}
}

// authority makes a CA below the root.
func authority(t *testing.T, root *certs.Authority) *certs.Authority {
	t.Helper()
	a, err := root.NewIntermediate("cluster1", certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newRoot(t *testing.T) *certs.Authority {
	t.Helper()
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Root", TTL: 2 * time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// plugIn writes the Secret cacerts.
func plugIn(t *testing.T, c *kube.Cluster, ns string, a *certs.Authority, layout store.Layout) {
	t.Helper()
	set, err := store.SecretFiles(a, nil, layout)
	if err != nil {
		t.Fatal(err)
	}
	data, err := store.EncodeSecret(store.SecretMeta{Namespace: ns, Name: PluggedIn, Layout: layout}, set)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, string(data))
}

// trusting returns the CA with other roots.
func trusting(a *certs.Authority, roots ...*x509.Certificate) *certs.Authority {
	b := *a
	b.Roots = roots
	return &b
}

func signs(c *ca.CA, a *certs.Authority, roots int) bool {
	set := c.Current()
	return set != nil && set.Cert.Equal(a.Cert) && len(set.Roots) == roots
}

// The Secret is used without restart, a bad one is refused, and what was used
// last stays when the Secret or the API server goes.
func TestPluggedIn(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := kube.Start(t)
	ns := c.Namespace(t, "plugged")
	root, other := newRoot(t), newRoot(t)
	first, second := authority(t, root), authority(t, root)
	plugIn(t, c, ns, first, store.LayoutIstio)
	followed := open(t, c.Config(), ns)
	if s := followed.Status(); !signs(followed, first, 1) || s.Source != "Secret "+ns+"/cacerts" || s.Error != "" {
		t.Fatalf("at the start: %+v", s)
	}
	plugIn(t, c, ns, second, store.LayoutIstio)
	waitFor(t, "new signer", func() bool { return signs(followed, second, 1) })

	plugIn(t, c, ns, authority(t, other), store.LayoutIstio)
	waitFor(t, "refusal of another root", func() bool {
		return slices.Contains(followed.Status().Codes, ca.UntrustedSigner) && signs(followed, second, 1)
	})
	c.Apply(t, "{apiVersion: v1, kind: Secret, metadata: {name: cacerts, namespace: "+ns+"}, data: {ca-key.pem: anVuaw==}}")
	waitFor(t, "refusal of junk", func() bool {
		s := followed.Status()
		return strings.Contains(s.Error, "Secret "+ns+"/cacerts, ca-key.pem") && signs(followed, second, 1)
	})
	c.Kubectl(t, "", "delete", "secret", "-n", ns, "cacerts")
	waitFor(t, "refusal of nothing", func() bool {
		return slices.Contains(followed.Status().Codes, "incomplete") && signs(followed, second, 1)
	})

	plugIn(t, c, ns, trusting(second, root.Cert, other.Cert), store.LayoutTLS)
	waitFor(t, "second root", func() bool { return signs(followed, second, 2) && followed.Status().Error == "" })

	c.Restart(t)
	plugIn(t, c, ns, trusting(first, root.Cert, other.Cert), store.LayoutTLS)
	waitFor(t, "what was written after a restart of the API server", func() bool { return signs(followed, first, 2) })
}

// Control planes that start at once share the CA that one of them makes, and a
// later one finds it. It stays when somebody plugs in a CA of another root,
// which no proxy trusts yet.
func TestSelfSigned(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := kube.Shared(t, "ca")
	ns := c.Namespace(t, "self")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := Open(t.Context(), config(t, c.Config(), ns)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	one, two := open(t, c.Config(), ns), open(t, c.Config(), ns)
	if one.Current() == nil || two.Current() == nil || !one.Current().Cert.Equal(two.Current().Cert) {
		t.Fatalf("two CAs: %+v, %+v", one.Status(), two.Status())
	}
	if s := one.Status(); s.Source != "Secret "+ns+"/istio-ca-secret" {
		t.Errorf("source is %q", s.Source)
	}
	plugIn(t, c, ns, authority(t, newRoot(t)), store.LayoutIstio)
	waitFor(t, "refusal", func() bool { return slices.Contains(one.Status().Codes, ca.UntrustedSigner) })
	if one.Current().Cert.Subject.CommonName != "meshctl self-signed CA" {
		t.Errorf("%s signs", one.Current().Cert.Subject)
	}
}

// istioSecret is what Istio's control plane keeps: RSA, an empty chain and an
// empty key.pem.
func istioSecret(t *testing.T, ns string, key *rsa.PrivateKey, serial int64) *corev1.Secret {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{Organization: []string{"cluster.local"}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SelfSigned, Namespace: ns}, Type: "istio.io/ca-root",
		Data: map[string][]byte{
			"ca-cert.pem": cert, "root-cert.pem": cert, "cert-chain.pem": {}, "key.pem": {},
			"ca-key.pem": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		},
	}
}

// Istio makes the certificate of its root anew before it ends, with the same
// key. Old and new are roots of the same certificates, so that is followed.
func TestSelfSignedByIstio(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c := kube.Shared(t, "ca")
	ns := c.Namespace(t, "istio")
	source, err := Open(t.Context(), config(t, c.Config(), ns)) // makes one, which is deleted
	if err != nil {
		t.Fatal(err)
	}
	if err := source.secrets.Delete(t.Context(), SelfSigned, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := source.secrets.Create(t.Context(), istioSecret(t, ns, key, 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	followed := open(t, c.Config(), ns)
	if set := followed.Current(); set == nil || len(set.Cert.Subject.CommonName) != 0 || len(set.Roots) != 1 {
		t.Errorf("status is %+v", followed.Status())
	}
	again := istioSecret(t, ns, key, 2)
	if _, err := source.secrets.Update(t.Context(), again, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "new certificate of the root", func() bool {
		s := followed.Status()
		return s.Error == "" && followed.Current().Cert.SerialNumber.Int64() == 2
	})
}

// Without the right to read or to write the error says which and how to go on.
func TestForbidden(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := kube.Shared(t, "ca")
	ns := c.Namespace(t, "forbidden")
	if _, err := Open(t.Context(), config(t, c.Config(), "nowhere")); err == nil || !strings.Contains(err.Error(), "make the namespace first") {
		t.Errorf("without a namespace: %v", err)
	}
	api := c.Config()
	api.Impersonate.UserName = "somebody"
	if _, err := Open(t.Context(), config(t, api, ns)); err == nil || !strings.Contains(err.Error(), "read the Secret "+ns+"/cacerts of the signing CA: secrets \"cacerts\" is forbidden") {
		t.Errorf("without rights: %v", err)
	}
	c.Apply(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: read, namespace: `+ns+`},
		rules: [{apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: read, namespace: `+ns+`},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: read}, subjects: [{kind: User, name: somebody, apiGroup: rbac.authorization.k8s.io}]}`)
	waitFor(t, "error that names what to do", func() bool {
		_, err := Open(t.Context(), config(t, api, ns))
		return err != nil && strings.Contains(err.Error(), "plug a CA in with meshctl certs cacerts")
	})
}
