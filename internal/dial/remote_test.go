package dial

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestGuardTransport(t *testing.T) {
	t.Parallel()
	var protocol string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol = r.Proto
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest?token=secret", http.StatusFound)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	local := Guard{Loopback: true}
	if err := send(t, local, ServerTLS{Roots: roots}, server.URL); err != nil {
		t.Errorf("an ordinary request: %v", err)
	}
	if protocol != "HTTP/2.0" {
		t.Errorf("spoke %s, want HTTP/2.0", protocol)
	}
	for name, tc := range map[string]struct {
		guard  Guard
		server ServerTLS
		path   string
		want   string
	}{
		"redirect":    {local, ServerTLS{Roots: roots}, "/away", "redirects to another address, which is not followed"},
		"loopback":    {Guard{}, ServerTLS{Roots: roots}, "/", "127.0.0.1 is loopback"},
		"no roots":    {local, ServerTLS{Roots: []byte("x")}, "/", "no PEM certificate among the roots"},
		"other roots": {local, ServerTLS{}, "/", "certificate"},
		"other name":  {local, ServerTLS{Roots: roots, Name: "west.example.org"}, "/", "west.example.org"},
	} {
		err := send(t, tc.guard, tc.server, server.URL+tc.path)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}

func send(t *testing.T, guard Guard, server ServerTLS, at string) error {
	t.Helper()
	transport, err := guard.Transport(server, nil, 1<<20)
	if err != nil {
		return err
	}
	return roundTrip(t, transport, at)
}

func roundTrip(t *testing.T, transport http.RoundTripper, at string) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// The guard also checks the address of the proxy in a kubeconfig.
func TestGuardTransportProxy(t *testing.T) {
	t.Parallel()
	transport, err := Guard{}.Transport(ServerTLS{}, &url.URL{Scheme: "http", Host: "127.0.0.1:9"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	err = roundTrip(t, transport, "https://203.0.113.1")
	if _, ok := errors.AsType[*RefusedError](err); !ok {
		t.Errorf("error %v is no *RefusedError", err)
	}
}
