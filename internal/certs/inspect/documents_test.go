package inspect

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// TestSecretsThatAreBrokenOrHuge: broken or huge Secrets are reported at their places
// and do not hide other Secrets.
func TestSecretsThatAreBrokenOrHuge(t *testing.T) {
	t.Parallel()
	root, ca, _ := authority(t)
	pair := func(ttl time.Duration) (chain, key string) {
		signer, err := certs.GenerateKey(certs.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := ca.SignServer(signer.Public(), []string{"shop.example.com"}, ttl, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		text, err := certs.EncodeKey(signer)
		if err != nil {
			t.Fatal(err)
		}
		return string(certs.EncodeCerts(leaf, ca.Cert)), string(text)
	}
	secret := func(name string, values ...string) string {
		var b strings.Builder
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\nstringData:\n", name)
		for i := 0; i < len(values); i += 2 {
			fmt.Fprintf(&b, "  %s: |\n%s\n", values[i], indent(values[i+1], 4))
		}
		return b.String()
	}
	chain, key := pair(2 * time.Hour)
	_, otherKey := pair(2 * time.Hour)
	oldChain, oldKey := pair(time.Minute)
	roots := string(certs.EncodeCerts(root.Cert))
	var many []string
	for i := range maxKeys + 1 {
		many = append(many, fmt.Sprint("key-", i), "x")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good":       secret("good", "tls.crt", chain, "tls.key", key, "ca.crt", roots),
		"mismatched": secret("mismatched", "tls.crt", chain, "tls.key", otherKey, "ca.crt", roots),
		"expired":    secret("expired", "tls.crt", oldChain, "tls.key", oldKey, "ca.crt", roots),
		"large":      secret("large", "tls.crt", strings.Repeat("x", 5<<20), "tls.key", key, "ca.crt", roots),
		"many":       secret("many", many...),
	} {
		write(t, filepath.Join(dir, name+".yaml"), text)
	}
	m, err := load(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]verify.Code{}
	for _, s := range m.Sets {
		found[s.Place] = nil
		for _, f := range verify.Check(s, verify.Options{Now: time.Now().Add(time.Hour)}) {
			if f.Severity != verify.Error {
				continue
			}
			for _, name := range []string{"mismatched", "expired", "large", "many"} {
				if strings.HasPrefix(f.Place, filepath.Join(dir, name+".yaml")) {
					found[name] = append(found[name], f.Code)
				}
			}
			if strings.HasPrefix(f.Place, filepath.Join(dir, "good.yaml")) {
				t.Errorf("of a good Secret: %+v", f)
			}
		}
	}
	if _, read := found[filepath.Join(dir, "good.yaml")+": Secret good"]; !read {
		t.Errorf("the good Secret is not read: %v", found)
	}
	for name, want := range map[string]verify.Code{
		"mismatched": verify.KeyMismatch, "expired": verify.Expired, "large": verify.NoPEM, "many": verify.Unreadable,
	} {
		if !slices.Contains(found[name], want) {
			t.Errorf("%s: found %v, want %s", name, found[name], want)
		}
	}
}
