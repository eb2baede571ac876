package server

import (
	"context"
	"crypto/fips140"
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
)

// shake makes a handshake with the secure port, up to the first byte or a refusal.
func shake(t *testing.T, s *Server, cfg *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", s.secure.Addr().String())
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// HTTP/2 begins with the client's preface, and the settings of the server.
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return tls.ConnectionState{}, err
	}
	_, err = conn.Read(make([]byte, 1))
	return conn.(*tls.Conn).ConnectionState(), err
}

// TestTLSVersionsAndCiphers: old versions, ciphers and certificates are refused; TLS 1.2 with
// modern ciphers is optional.
func TestTLSVersionsAndCiphers(t *testing.T) {
	strict := start(t, nil)
	lenient := start(t, func(c *Config) { c.MinTLS = tls.VersionTLS12 })
	old := func(version uint16, suites ...uint16) func(*tls.Config) {
		return func(c *tls.Config) { c.MinVersion, c.MaxVersion, c.CipherSuites = tls.VersionTLS10, version, suites }
	}
	for name, tc := range map[string]struct {
		change          func(*tls.Config)
		strict, lenient bool
	}{
		"1.3":                  {func(*tls.Config) {}, true, true},
		"1.2":                  {old(tls.VersionTLS12), false, true},
		"1.2, ECDHE and GCM":   {old(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), false, true},
		"1.2, CBC":             {old(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256), false, false},
		"1.2, RC4":             {old(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_RC4_128_SHA), false, false},
		"1.2, 3DES":            {old(tls.VersionTLS12, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA), false, false},
		"1.2, RSA for the key": {old(tls.VersionTLS12, tls.TLS_RSA_WITH_AES_128_GCM_SHA256), false, false},
		"1.1":                  {old(tls.VersionTLS11), false, false},
		"1.0":                  {old(tls.VersionTLS10), false, false},
	} {
		for s, want := range map[*Server]bool{strict: tc.strict, lenient: tc.lenient} {
			cfg := clientTLS(t, s)
			tc.change(cfg)
			if _, err := shake(t, s, cfg); (err == nil) != want {
				t.Errorf("%s, minimum %s: %v, want it accepted: %t", name, tls.VersionName(s.cfg.MinTLS), err, want)
			}
		}
	}
	// No session is resumed, before and after a restart.
	cfg := clientTLS(t, strict)
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for range 2 {
		state, err := shake(t, strict, cfg)
		if err != nil || state.DidResume {
			t.Errorf("%v, resumed: %t", err, state.DidResume)
		}
	}
}

// TestPostQuantum: the key exchange is post-quantum if the client supports it.
func TestPostQuantum(t *testing.T) {
	s := start(t, nil)
	cfg := clientTLS(t, s)
	state, err := shake(t, s, cfg)
	if err != nil || state.CurveID != tls.X25519MLKEM768 {
		t.Errorf("%v with %v, want %v", err, state.CurveID, tls.X25519MLKEM768)
	}
	cfg.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256}
	if state, err := shake(t, s, cfg); err != nil || state.CurveID != tls.X25519 {
		t.Errorf("a classical client: %v with %v", err, state.CurveID)
	}
}

// TestPostQuantumIsRequired: where it is required, other clients fail in the handshake.
func TestPostQuantumIsRequired(t *testing.T) {
	s := start(t, func(c *Config) { c.KeyExchanges = []tls.CurveID{tls.X25519MLKEM768} })
	cfg := clientTLS(t, s)
	if state, err := shake(t, s, cfg); err != nil || state.CurveID != tls.X25519MLKEM768 {
		t.Errorf("%v with %v, want %v", err, state.CurveID, tls.X25519MLKEM768)
	}
	cfg.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256}
	if _, err := shake(t, s, cfg); err == nil || !strings.Contains(err.Error(), "handshake failure") {
		t.Errorf("a classical client: %v", err)
	}
}

// TestFIPS: the server starts, serves and signs in FIPS 140-3 mode.
func TestFIPS(t *testing.T) {
	const inner = "MESHCTL_TEST_FIPS"
	if os.Getenv(inner) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestFIPS$", "-test.v")
		env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GODEBUG=") })
		cmd.Env = append(env, "GODEBUG=fips140=only", inner+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestFIPS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if !fips140.Enabled() {
		t.Fatal("the module is off")
	}
	root := certstest.NewRoot(t)
	dir := filepath.Join(t.TempDir(), "cluster1")
	saveCA(t, dir, certstest.NewIntermediate(t, root))
	s := start(t, func(c *Config) { c.CADir = dir })
	if _, err := dialSecure(t, s, clientTLS(t, s, s.ca.Current().Cert.Raw)); err != nil {
		t.Error(err)
	}
	chain, err := workloadOf(t, s.ca.Current().Authority).ask(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := certs.ParseCerts([]byte(chain[0])); err != nil || len(list) != 1 {
		t.Errorf("%d certificates, %v", len(list), err)
	}
}
