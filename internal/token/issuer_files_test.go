package token

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
)

func save(t *testing.T, dir string, i *Issuer) {
	t.Helper()
	if err := SaveIssuer(dir, i, true); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, i *Issuer) string {
	t.Helper()
	raw, err := i.Create(Claims{
		Namespace: "sample", ServiceAccount: "helloworld", Audiences: []string{"istio-ca"}, TTL: time.Hour,
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "issuer")
	made := newIssuer(t, "")
	if err := SaveIssuer(dir, made, false); err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = info.Mode()
	}
	if diff := cmp.Diff(map[string]fs.FileMode{KeyFile: 0o600, JWKSFile: 0o644, IssuerFile: 0o644}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v: want mode 0700", info, err)
	}
	jwks, err := os.ReadFile(filepath.Join(dir, JWKSFile))
	if err != nil || strings.Contains(string(jwks), `"d"`) {
		t.Errorf("jwks.json holds a private key or is not there (%v):\n%s", err, jwks)
	}

	loaded, err := LoadIssuer(dir)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.URL() != made.URL() || loaded.KeyID() != made.KeyID() {
		t.Errorf("loaded %s %s, made %s %s", loaded.URL(), loaded.KeyID(), made.URL(), made.KeyID())
	}

	// The verifier's side works without the key.
	if err := os.Remove(filepath.Join(dir, KeyFile)); err != nil {
		t.Fatal(err)
	}
	v, err := LoadVerifier(dir, []string{"istio-ca"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := v.Verify(create(t, loaded), now)
	if err != nil || c.ServiceAccount != "helloworld" || v.Issuer() != made.URL() {
		t.Errorf("claims %+v, issuer %q, error %v", c, v.Issuer(), err)
	}
	if _, err := LoadIssuer(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "meshctl token issuer") {
		t.Errorf("issuer without key: %v", err)
	}
}

func TestSaveKeepsWhatExists(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := newIssuer(t, "")
	save(t, dir, first)
	if err := SaveIssuer(dir, newIssuer(t, ""), false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second save: %v", err)
	}
	if got, err := LoadIssuer(dir); err != nil || got.KeyID() != first.KeyID() {
		t.Errorf("the first issuer is gone: %v", err)
	}
	second := newIssuer(t, "")
	save(t, dir, second)
	if got, err := LoadIssuer(dir); err != nil || got.KeyID() != second.KeyID() {
		t.Errorf("force did not replace the issuer: %v", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	rsaKey, err := certs.GenerateKey(certs.RSA2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaPEM, err := certs.EncodeKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	otherPEM, err := certs.EncodeKey(newIssuer(t, "").Key())
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		file, data   string
		want         string
		verifierToo  bool // the verifier refuses as well
		modeOfChange fs.FileMode
	}{
		"key is no PEM":           {KeyFile, "x", KeyFile, false, 0o600},
		"RSA key":                 {KeyFile, string(rsaPEM), "want an ECDSA P-256 key", false, 0o600},
		"key of another issuer":   {KeyFile, string(otherPEM), "does not have the key", false, 0o600},
		"key that others read":    {KeyFile, string(otherPEM), "0644", false, 0o644},
		"empty issuer":            {IssuerFile, " \n", "want one line", true, 0o644},
		"two issuers":             {IssuerFile, "https://a\nhttps://b\n", "want one line", true, 0o644},
		"long issuer":             {IssuerFile, strings.Repeat("a", maxIssuerFile+1), "more than", true, 0o644},
		"issuer that is no https": {IssuerFile, "http://a", "want https", false, 0o644},
		"key set is no JSON":      {JWKSFile, "x", "key set", true, 0o644},
		"long key set":            {JWKSFile, strings.Repeat(" ", MaxKeySetSize+1), "more than", true, 0o644},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			save(t, dir, newIssuer(t, ""))
			path := filepath.Join(dir, tt.file)
			if err := os.WriteFile(path, []byte(tt.data), tt.modeOfChange); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.modeOfChange); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadIssuer(dir); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("issuer: error %v, want %q and the directory", err, tt.want)
			}
			_, err := LoadVerifier(dir, []string{"a"})
			if tt.verifierToo && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("verifier: error %v, want %q", err, tt.want)
			}
			if !tt.verifierToo && err != nil {
				t.Errorf("verifier: %v", err)
			}
		})
	}
}

// TestVerifierFollowsTheFiles adds and removes keys while the verifier is in use.
func TestVerifierFollowsTheFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := newIssuer(t, ""), newIssuer(t, "")
	save(t, dir, first)
	v, err := LoadVerifier(dir, []string{"istio-ca"})
	if err != nil {
		t.Fatal(err)
	}
	old, fresh := create(t, first), create(t, second)
	verify := func(step, raw string, after time.Duration, want string) {
		t.Helper()
		_, err := v.Verify(raw, now.Add(after))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", step, err, want)
		}
	}
	verify("first key", old, 0, "")

	save(t, dir, second)
	verify("within the same second the files are not read", fresh, reloadInterval-1, "unknown key id")
	verify("after a second they are", fresh, reloadInterval, "")
	verify("the replaced key is out", old, reloadInterval, "unknown key id")

	jwks := filepath.Join(dir, JWKSFile)
	good, err := os.ReadFile(jwks)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(jwks, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	verify("a broken file leaves the last good keys", fresh, 2*reloadInterval, "")
	verify("and is named in errors", old, 2*reloadInterval, "last good keys are in use: token issuer "+dir)
	if err := os.Remove(jwks); err != nil {
		t.Fatal(err)
	}
	verify("so does a missing one", fresh, 3*reloadInterval, "")
	if err := os.WriteFile(jwks, good, 0o644); err != nil {
		t.Fatal(err)
	}
	verify("repaired", fresh, 4*reloadInterval, "")
	if _, err := v.Verify(old, now.Add(4*reloadInterval)); err == nil || strings.Contains(err.Error(), "last good") {
		t.Errorf("repaired files are still called broken: %v", err)
	}
	// A clock that is set back must not stop the reading.
	save(t, dir, first)
	verify("clock set back", old, 0, "")
}
