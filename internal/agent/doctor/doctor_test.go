package doctor

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/token"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, data string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, []byte(data), 0o600))
	return file
}

// newToken returns a file with a token of a service account.
func newToken(t *testing.T, account, audience string, issued time.Time) string {
	t.Helper()
	issuer, err := token.GenerateIssuer("https://issuer.test")
	check(t, err)
	raw, err := issuer.Create(token.Claims{Namespace: "sample", ServiceAccount: account, Audiences: []string{audience}, TTL: time.Hour}, issued)
	check(t, err)
	return writeFile(t, raw+"\n")
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestExamine: each fault gives one cause and its fix, and no later check runs.
func TestExamine(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t)
	now := time.Now()
	plain := httptest.NewServer(nil)
	defer plain.Close()
	taken := netip.MustParseAddrPort(listener(t).Addr().String())
	gone := listener(t)
	check(t, gone.Close())
	foreign := httptest.NewTLSServer(nil)
	defer foreign.Close()
	foreignRoot := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: foreign.Certificate().Raw}))
	refuse := func(code codes.Code) func(context.Context) error {
		return func(context.Context) error { return status.Error(code, "no") }
	}
	for name, tc := range map[string]struct {
		spoil       func(*Config)
		check       string
		cause, want string // the beginning of the cause, and a part of the fix
	}{
		"healthy":            {func(*Config) {}, "certificate", "", ""},
		"directory":          {func(c *Config) { c.Directories = func() error { return errors.New("open to all") } }, "directories", "open to all", ""},
		"port":               {func(c *Config) { c.Ports = []Port{{taken, "--status-port"}} }, "ports", "another program listens on " + taken.String(), "--status-port"},
		"address":            {func(c *Config) { c.Ports = []Port{{netip.MustParseAddrPort("203.0.113.9:15020"), "--x"}} }, "ports", "203.0.113.9 is no address", "--bind-address"},
		"bootstrap":          {func(c *Config) { c.Bootstrap = func(context.Context) error { return errors.New("no envoy") } }, "bootstrap", "no envoy", ""},
		"no token":           {func(c *Config) { c.TokenFile = "none" }, "token", "there is no token file none", "audience istio-ca"},
		"empty token":        {func(c *Config) { c.TokenFile = writeFile(t, "\n") }, "token", "the token file", "audience istio-ca"},
		"junk":               {func(c *Config) { c.TokenFile = writeFile(t, "secret") }, "token", "", "--token"},
		"expired":            {func(c *Config) { c.TokenFile = newToken(t, "client", "istio-ca", now.Add(-2*time.Hour)) }, "token", "the token expired at ", "renew"},
		"clock behind":       {func(c *Config) { c.TokenFile = newToken(t, "client", "istio-ca", now.Add(10*time.Minute)) }, "token", "the clock of this machine is at least", "NTP"},
		"another account":    {func(c *Config) { c.ServiceAccount = "other" }, "token", "the token is of system:serviceaccount:sample:client", "--service-account"},
		"no roots":           {func(c *Config) { c.RootFile = "none" }, "roots", "there is no file none", "--root-ca"},
		"junk roots":         {func(c *Config) { c.RootFile = writeFile(t, "junk") }, "roots", "", "istio-ca-root-cert"},
		"root expired":       {func(c *Config) { c.Now = func() time.Time { return now.AddDate(90, 0, 0) }; c.TokenFile = "" }, "roots", "the root ", "rotate"},
		"name":               {func(c *Config) { c.Addr = "no-such-host.invalid:15012" }, "DNS", "the name no-such-host.invalid", ""},
		"refused":            {func(c *Config) { c.Addr = gone.Addr().String() }, "TCP", gone.Addr().String() + " refuses", "15012"},
		"no TLS":             {func(c *Config) { c.Addr = plain.Listener.Addr().String() }, "TLS", plain.Listener.Addr().String() + " does not speak TLS", "15012"},
		"another mesh":       {func(c *Config) { c.RootFile = writeFile(t, foreignRoot) }, "TLS", "the certificate at " + ca.Addr + " leads to no root", "root of this control plane"},
		"another name":       {func(c *Config) { c.ServerName = "istiod.other.svc" }, "TLS", "the certificate at " + ca.Addr + " is for istiod.istio-system.svc", "ISTIOD_SAN"},
		"expired server":     {func(c *Config) { c.Now = func() time.Time { return now.Add(2 * time.Hour) }; c.TokenFile = "" }, "TLS", "the control plane's certificate expired", "clock"},
		"clock before TLS":   {func(c *Config) { c.Now = func() time.Time { return now.AddDate(0, 0, -2) }; c.TokenFile = "" }, "TLS", "the clock of this machine is at least", "NTP"},
		"untrusted issuer":   {func(c *Config) { c.Sign = refuse(codes.Unauthenticated) }, "certificate", "rpc error: code = Unauthenticated", "--cluster-id"},
		"audience":           {func(c *Config) { c.Sign = refuse(codes.Unauthenticated); c.Audience = "other" }, "certificate", `the control plane refuses the token, which is for the audience ["istio-ca"], not for other`, "--audience other"},
		"permission":         {func(c *Config) { c.Sign = refuse(codes.PermissionDenied) }, "certificate", "rpc error", "identity"},
		"unavailable":        {func(c *Config) { c.Sign = refuse(codes.Unavailable) }, "certificate", "rpc error", "/ready?verbose"},
		"limit":              {func(c *Config) { c.Sign = refuse(codes.ResourceExhausted) }, "certificate", "rpc error", "limit"},
		"another answer":     {func(c *Config) { c.Sign = func(context.Context) error { return errors.New("another key") } }, "certificate", "another key", "log of the control plane"},
		"a token is missing": {func(c *Config) { c.TokenFile, c.Sign = "", refuse(codes.Unauthenticated) }, "certificate", "rpc error", "--cluster-id"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Config{
				Ports:     []Port{{netip.MustParseAddrPort("127.0.0.1:0"), "--status-port"}},
				TokenFile: newToken(t, "client", "istio-ca", now), Namespace: "sample", ServiceAccount: "client", Audience: "istio-ca",
				RootFile: ca.RootFile, Addr: ca.Addr, ServerName: certstest.ServerName,
				Sign: func(context.Context) error { return nil },
				Now:  func() time.Time { return now },
			}
			tc.spoil(c)
			all := c.Examine(t.Context())
			last := all[len(all)-1]
			if last.Check != tc.check || !strings.HasPrefix(last.Cause, tc.cause) || (last.Cause == "") != (name == "healthy") || !strings.Contains(last.Fix, tc.want) {
				t.Errorf("got %+v, want check %q, cause %q, fix %q", last, tc.check, tc.cause, tc.want)
			}
			for _, f := range all[:len(all)-1] {
				if f.Cause != "" {
					t.Errorf("the examination went on after %+v", f)
				}
			}
			if strings.Contains(last.Cause+last.Fix, "secret") {
				t.Errorf("the token is shown: %+v", last)
			}
		})
	}
}
