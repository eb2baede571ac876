package ca

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
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
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/kube"
	testkube "github.com/meshctl/meshctl/test/kube"
)

func needKubernetes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
}

// openSecrets opens the CA of a namespace and follows it until the test ends.
func openSecrets(t *testing.T, api *rest.Config, ns string) *CA {
	t.Helper()
	source, err := OpenSecrets(t.Context(), secretConfig(t, api, ns))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(Config{
		Source: source, Use: func(*Set) {}, Reloaded: func(bool) {}, Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
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

func secretConfig(t *testing.T, api *rest.Config, ns string) SecretConfig {
	t.Helper()
	client, err := rest.HTTPClientFor(api) // shares its connections with all clients of api
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kube.CloseIdle(client.Transport) })
	return SecretConfig{
		API: api, Namespace: ns, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Make: func() (map[string][]byte, error) { return store.SelfSigned("cluster.local", time.Now(), rand.Reader) },
	}
}

// intermediate returns a CA below the root.
func intermediate(t *testing.T, root *certs.Authority) *certs.Authority {
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
func plugIn(t *testing.T, c *testkube.Cluster, ns string, a *certs.Authority, layout store.Layout) {
	t.Helper()
	set, err := store.SecretFiles(a, nil, layout)
	if err != nil {
		t.Fatal(err)
	}
	data, err := store.EncodeSecret(store.SecretMeta{Namespace: ns, Name: PluggedInSecret, Layout: layout}, set)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, string(data))
}

// withRoots returns the CA with other roots.
func withRoots(a *certs.Authority, roots ...*x509.Certificate) *certs.Authority {
	b := *a
	b.Roots = roots
	return &b
}

func signsWith(c *CA, a *certs.Authority, roots int) bool {
	set := c.Current()
	return set != nil && set.Cert.Equal(a.Cert) && len(set.Roots) == roots
}

// TestPluggedInSecret: a changed Secret takes effect without a restart. The last good
// CA stays while the Secret is invalid or missing or the API server is down.
func TestPluggedInSecret(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := testkube.Start(t)
	ns := c.Namespace(t, "plugged")
	root, other := newRoot(t), newRoot(t)
	first, second := intermediate(t, root), intermediate(t, root)
	plugIn(t, c, ns, first, store.LayoutIstio)
	followed := openSecrets(t, c.Config(), ns)
	if s := followed.Status(); !signsWith(followed, first, 1) || s.Source != "Secret "+ns+"/cacerts" || s.Error != "" {
		t.Fatalf("at the start: %+v", s)
	}
	plugIn(t, c, ns, second, store.LayoutIstio)
	waitFor(t, "new signer", func() bool { return signsWith(followed, second, 1) })

	plugIn(t, c, ns, intermediate(t, other), store.LayoutIstio)
	waitFor(t, "refusal of another root", func() bool {
		return slices.Contains(followed.Status().Codes, UntrustedSigner) && signsWith(followed, second, 1)
	})
	c.Apply(t, "{apiVersion: v1, kind: Secret, metadata: {name: cacerts, namespace: "+ns+"}, data: {ca-key.pem: anVuaw==}}")
	waitFor(t, "refusal of junk", func() bool {
		s := followed.Status()
		return strings.Contains(s.Error, "Secret "+ns+"/cacerts, ca-key.pem") && signsWith(followed, second, 1)
	})
	c.Kubectl(t, "", "delete", "secret", "-n", ns, "cacerts")
	waitFor(t, "refusal of nothing", func() bool {
		return slices.Contains(followed.Status().Codes, "incomplete") && signsWith(followed, second, 1)
	})

	plugIn(t, c, ns, withRoots(second, root.Cert, other.Cert), store.LayoutTLS)
	waitFor(t, "second root", func() bool { return signsWith(followed, second, 2) && followed.Status().Error == "" })

	c.Restart(t)
	plugIn(t, c, ns, withRoots(first, root.Cert, other.Cert), store.LayoutTLS)
	waitFor(t, "what was written after a restart of the API server", func() bool { return signsWith(followed, first, 2) })
}

// TestSelfSignedSecret: control planes that start at once share the CA that one of them
// creates. It stays in use when a CA of another root is plugged in, which no proxy
// trusts yet.
func TestSelfSignedSecret(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := testkube.Shared(t, "ca")
	ns := c.Namespace(t, "self")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := OpenSecrets(t.Context(), secretConfig(t, c.Config(), ns)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	one, two := openSecrets(t, c.Config(), ns), openSecrets(t, c.Config(), ns)
	if one.Current() == nil || two.Current() == nil || !one.Current().Cert.Equal(two.Current().Cert) {
		t.Fatalf("two CAs: %+v, %+v", one.Status(), two.Status())
	}
	if s := one.Status(); s.Source != "Secret "+ns+"/istio-ca-secret" {
		t.Errorf("source is %q", s.Source)
	}
	plugIn(t, c, ns, intermediate(t, newRoot(t)), store.LayoutIstio)
	waitFor(t, "refusal", func() bool { return slices.Contains(one.Status().Codes, UntrustedSigner) })
	if one.Current().Cert.Subject.CommonName != "meshctl self-signed CA" {
		t.Errorf("%s signs", one.Current().Cert.Subject)
	}
}

// istioSecret returns a Secret as Istio's control plane writes it: RSA, an empty chain
// and an empty key.pem.
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
		ObjectMeta: metav1.ObjectMeta{Name: SelfSignedSecret, Namespace: ns}, Type: "istio.io/ca-root",
		Data: map[string][]byte{
			"ca-cert.pem": cert, "root-cert.pem": cert, "cert-chain.pem": {}, "key.pem": {},
			"ca-key.pem": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		},
	}
}

// TestSelfSignedSecretOfIstio: Istio renews the certificate of its root with the same
// key. The new one is accepted, as both verify the same certificates.
func TestSelfSignedSecretOfIstio(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c := testkube.Shared(t, "ca")
	ns := c.Namespace(t, "istio")
	source, err := OpenSecrets(t.Context(), secretConfig(t, c.Config(), ns)) // makes one, which is deleted
	if err != nil {
		t.Fatal(err)
	}
	if err := source.secrets.Delete(t.Context(), SelfSignedSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := source.secrets.Create(t.Context(), istioSecret(t, ns, key, 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	followed := openSecrets(t, c.Config(), ns)
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

// TestSecretsForbidden: without permission to read or write, the error names the
// permission and the fix.
func TestSecretsForbidden(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := testkube.Shared(t, "ca")
	ns := c.Namespace(t, "forbidden")
	if _, err := OpenSecrets(t.Context(), secretConfig(t, c.Config(), "nowhere")); err == nil || !strings.Contains(err.Error(), "make the namespace first") {
		t.Errorf("without a namespace: %v", err)
	}
	api := c.Config()
	api.Impersonate.UserName = "somebody"
	if _, err := OpenSecrets(t.Context(), secretConfig(t, api, ns)); err == nil || !strings.Contains(err.Error(), "read the Secret "+ns+"/cacerts of the signing CA: secrets \"cacerts\" is forbidden") {
		t.Errorf("without rights: %v", err)
	}
	c.Apply(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: read, namespace: `+ns+`},
		rules: [{apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: read, namespace: `+ns+`},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: read}, subjects: [{kind: User, name: somebody, apiGroup: rbac.authorization.k8s.io}]}`)
	waitFor(t, "error that names what to do", func() bool {
		_, err := OpenSecrets(t.Context(), secretConfig(t, api, ns))
		return err != nil && strings.Contains(err.Error(), "plug a CA in with meshctl certs cacerts")
	})
}

// secretData returns the data of a CA's Secret.
func secretData(t *testing.T, a *certs.Authority) map[string][]byte {
	t.Helper()
	set, err := store.SecretFiles(a, nil, store.LayoutIstio)
	if err != nil {
		t.Fatal(err)
	}
	data := map[string][]byte{}
	for _, f := range set {
		data[f.Name] = f.Data
	}
	return data
}

// unusableSecrets returns invalid Secrets by their fault, with the code that reports
// it.
func unusableSecrets(t *testing.T, root *certs.Authority) map[string]struct {
	data map[string][]byte
	code verify.Code
} {
	t.Helper()
	one, other := secretData(t, intermediate(t, root)), secretData(t, intermediate(t, root))
	mismatched := maps.Clone(one)
	mismatched["ca-key.pem"] = other["ca-key.pem"]
	old := time.Now().Add(-2 * time.Hour)
	past, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Root", TTL: time.Hour}, old, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := past.NewIntermediate("cluster1", certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}, old, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	large := maps.Clone(one)
	large["ca-key.pem"] = append([]byte(strings.Repeat("#", 100<<10)+"\n"), one["ca-key.pem"]...)
	return map[string]struct {
		data map[string][]byte
		code verify.Code
	}{
		"key of another certificate": {mismatched, verify.KeyMismatch},
		"expired":                    {secretData(t, ended), verify.Expired},
		"a key of 100 KiB":           {large, verify.Unreadable},
		"no keys at all":             {map[string][]byte{}, verify.Incomplete},
	}
}

// TestSecretsThatCannotBeUsed: an invalid Secret is reported with its code, and the last
// good CA keeps signing. Thousands of unrelated keys in a Secret do no harm.
func TestSecretsThatCannotBeUsed(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := testkube.Shared(t, "ca")
	ns := c.Namespace(t, "b6")
	root := newRoot(t)
	first, second := intermediate(t, root), intermediate(t, root)
	plugIn(t, c, ns, first, store.LayoutIstio)
	source, err := OpenSecrets(t.Context(), secretConfig(t, c.Config(), ns))
	if err != nil {
		t.Fatal(err)
	}
	followed := openSecrets(t, c.Config(), ns)
	write := func(data map[string][]byte) error {
		_, err := source.secrets.Update(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: PluggedInSecret, Namespace: ns}, Type: corev1.SecretTypeOpaque, Data: data,
		}, metav1.UpdateOptions{})
		return err
	}
	for what, tc := range unusableSecrets(t, root) {
		if err := write(tc.data); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		waitFor(t, fmt.Sprintf("%s for %s", tc.code, what), func() bool {
			return slices.Contains(followed.Status().Codes, tc.code) && signsWith(followed, first, 1)
		})
	}
	huge := secretData(t, second)
	huge["cert-chain.pem"] = make([]byte, 5<<20)
	if err := write(huge); err == nil {
		t.Error("the API server takes a value of 5 MiB")
	}
	many := secretData(t, second)
	for i := range 10_000 {
		many[fmt.Sprint("other-", i)] = []byte("x")
	}
	if err := write(many); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the CA beside 10,000 other keys", func() bool { return signsWith(followed, second, 1) && followed.Status().Error == "" })
}

// TestSecretLimits: an invalid Secret is reported with its code, without an API server,
// which has limits itself.
func TestSecretLimits(t *testing.T) {
	now := verify.Options{Now: time.Now()}
	root := newRoot(t)
	huge := secretData(t, intermediate(t, root))
	huge["cert-chain.pem"] = make([]byte, 5<<20)
	_, _, err := store.FromSecret("Secret a/cacerts", "1", huge).Authority(now)
	if err == nil || !strings.Contains(err.Error(), "Secret a/cacerts, cert-chain.pem: unreadable: it has more than 1048576 bytes") {
		t.Errorf("a value of 5 MiB: %v", err)
	}
	for what, tc := range unusableSecrets(t, root) {
		if _, _, err := store.FromSecret("Secret a/cacerts", "1", tc.data).Authority(now); err == nil || !strings.Contains(err.Error(), string(tc.code)) {
			t.Errorf("%s: %v, want %s", what, err, tc.code)
		}
	}
}
