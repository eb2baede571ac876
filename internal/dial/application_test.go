package dial

import (
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestApplication(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := Application(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if host, _, _ := net.SplitHostPort(conn.LocalAddr().String()); runtime.GOOS == "linux" && host != "127.0.0.6" {
		t.Errorf("connected from %s, want 127.0.0.6", host)
	}
	// A machine without the address ::6 connects from another one.
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		defer l.Close()
		conn, err := Application(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if _, err := Application(t.Context(), "tcp", "169.254.169.254:80"); err == nil || !strings.Contains(err.Error(), "does not connect to") {
		t.Errorf("metadata service: error %v", err)
	}
}

func TestSourceOfProbes(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.6:0", "[::1]:80": "[::6]:0", "203.0.113.1:80": "", "localhost:80": "", "junk": "",
	} {
		got := ""
		if from := sourceOfProbes(address); from != nil {
			got = from.String()
		}
		if got != want {
			t.Errorf("%s: from %q, want %q", address, got, want)
		}
	}
}

// TestApplicationClient: the client verifies no certificate, uses HTTP/2 if the server supports it, and
// returns a redirect.
func TestApplicationClient(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request uses %s", r.Proto)
		}
		http.Redirect(w, r, "https://203.0.113.1/", http.StatusFound)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	resp, err := ApplicationClient(30 * time.Second).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusFound {
		t.Errorf("status %s", resp.Status)
	}
}
