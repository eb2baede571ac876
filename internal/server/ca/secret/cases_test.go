package secret

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/test/kube"
)

// secretData is what the Secret of a CA holds.
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

// bad are Secrets that cannot be used, by what is wrong with them, with the code
// that tells.
func bad(t *testing.T, root *certs.Authority) map[string]struct {
	data map[string][]byte
	code verify.Code
} {
	t.Helper()
	one, other := secretData(t, authority(t, root)), secretData(t, authority(t, root))
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

// B6: a Secret that cannot be used is told of, by its code, and what signed
// before goes on; one with thousands of other keys is as good as any, and what
// the API server has no room for changes nothing.
func TestSecretsThatCannotBeUsed(t *testing.T) {
	needKubernetes(t)
	t.Parallel()
	c := kube.Shared(t, "ca")
	ns := c.Namespace(t, "b6")
	root := newRoot(t)
	first, second := authority(t, root), authority(t, root)
	plugIn(t, c, ns, first, store.LayoutIstio)
	source, err := Open(t.Context(), config(t, c.Config(), ns))
	if err != nil {
		t.Fatal(err)
	}
	followed := open(t, c.Config(), ns)
	write := func(data map[string][]byte) error {
		_, err := source.secrets.Update(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: PluggedIn, Namespace: ns}, Type: corev1.SecretTypeOpaque, Data: data,
		}, metav1.UpdateOptions{})
		return err
	}
	for what, tc := range bad(t, root) {
		if err := write(tc.data); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		waitFor(t, fmt.Sprintf("%s for %s", tc.code, what), func() bool {
			return slices.Contains(followed.Status().Codes, tc.code) && signs(followed, first, 1)
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
	waitFor(t, "the CA beside 10,000 other keys", func() bool { return signs(followed, second, 1) && followed.Status().Error == "" })
}

// B6: the same without an API server, which has a limit of its own.
func TestLimits(t *testing.T) {
	now := verify.Options{Now: time.Now()}
	root := newRoot(t)
	huge := secretData(t, authority(t, root))
	huge["cert-chain.pem"] = make([]byte, 5<<20)
	_, _, err := store.FromSecret("Secret a/cacerts", "1", huge).Authority(now)
	if err == nil || !strings.Contains(err.Error(), "Secret a/cacerts, cert-chain.pem: unreadable: it has more than 1048576 bytes") {
		t.Errorf("a value of 5 MiB: %v", err)
	}
	for what, tc := range bad(t, root) {
		if _, _, err := store.FromSecret("Secret a/cacerts", "1", tc.data).Authority(now); err == nil || !strings.Contains(err.Error(), string(tc.code)) {
			t.Errorf("%s: %v, want %s", what, err, tc.code)
		}
	}
}
