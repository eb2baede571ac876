package dial

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestGuardCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		addr  string
		guard Guard
		want  string // empty: it may be connected to
	}{
		{"192.168.1.2", Guard{}, ""},
		{"8.8.8.8", Guard{}, ""},
		{"2001:db8::1", Guard{}, ""},
		{"100.64.0.1", Guard{}, ""},
		{"127.0.0.1", Guard{}, "is loopback"},
		{"127.8.9.1", Guard{}, "is loopback"},
		{"::1", Guard{}, "is loopback"},
		{"::ffff:127.0.0.1", Guard{}, "is loopback"},
		{"127.0.0.1", Guard{Loopback: true}, ""},
		{"0.0.0.0", Guard{Loopback: true, LinkLocal: true}, "is unspecified"},
		{"0.1.2.3", Guard{Loopback: true}, "is unspecified"},
		{"::", Guard{Loopback: true}, "is unspecified"},
		{"224.0.0.1", Guard{}, "is a multicast or broadcast address"},
		{"255.255.255.255", Guard{}, "is a multicast or broadcast address"},
		{"ff02::1", Guard{}, "is a multicast or broadcast address"},
		{"169.254.169.254", Guard{Loopback: true}, "is link-local or a metadata service"},
		{"::ffff:169.254.169.254", Guard{}, "is link-local or a metadata service"},
		{"64:ff9b::a9fe:a9fe", Guard{}, "is link-local or a metadata service"},
		{"fe80::1%eth0", Guard{}, "is link-local or a metadata service"},
		{"fd00:ec2::254", Guard{}, "is link-local or a metadata service"},
		{"168.63.129.16", Guard{}, "is link-local or a metadata service"},
		{"169.254.169.254", Guard{LinkLocal: true}, ""},
	}
	for _, tt := range tests {
		err := tt.guard.Check(netip.MustParseAddr(tt.addr))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s, %+v: %v", tt.addr, tt.guard, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s, %+v: error %v, want %q", tt.addr, tt.guard, err, tt.want)
		}
	}
}

// TestRefusedAfterResolution: refused addresses stay refused behind a name, also if
// the name resolves to another address the next time.
func TestRefusedAfterResolution(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	names := func(_ context.Context, host string) ([]netip.Addr, error) {
		switch host {
		case "metadata.example":
			return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
		case "both.example":
			return []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("127.0.0.1")}, nil
		case "none.example":
			return nil, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	tests := []struct {
		host  string
		guard Guard
		want  string
	}{
		{"metadata.example", Guard{Lookup: names}, "169.254.169.254 is link-local or a metadata service"},
		{"both.example", Guard{Lookup: names}, "127.0.0.1 is loopback"},
		{"both.example", Guard{Lookup: names, Loopback: true}, ""},
		{"none.example", Guard{Lookup: names}, "resolve none.example: no address"},
		{"other.example", Guard{Lookup: names}, "resolve other.example: lookup other.example: no such host"},
		{"localhost", Guard{}, "is loopback"}, // by the system's resolver
		{"127.0.0.1", Guard{}, "is loopback"},
		{"0.0.0.0", Guard{Loopback: true}, "is unspecified"},
	}
	for _, tt := range tests {
		conn, err := tt.guard.DialContext(t.Context(), "tcp", net.JoinHostPort(tt.host, port))
		if err == nil {
			_ = conn.Close()
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s, loopback %v: error %v, want %q", tt.host, tt.guard.Loopback, err, tt.want)
		}
	}
	var refused *RefusedError
	if _, err := (Guard{}).DialContext(t.Context(), "tcp", "127.0.0.1:"+port); !errors.As(err, &refused) {
		t.Errorf("error %v, want a *RefusedError", err)
	}
}

func TestBounded(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/small", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 100)) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 101)) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("x", 4096)); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.Handle("/away", http.RedirectHandler("http://169.254.169.254/latest", http.StatusFound))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client := &http.Client{
		Timeout: time.Minute,
		Transport: Bounded(&http.Transport{
			DialContext: Guard{Loopback: true}.DialContext, DisableKeepAlives: true,
		}, 100),
	}
	tests := []struct{ path, want string }{
		{"/small", ""},
		{"/large", "/large is larger than 100 bytes"},
		{"/large?watch=true", ""},
		{"/endless", "/endless is larger than 100 bytes"},
		{"/away", "redirects to another address, which is not followed"},
	}
	for _, tt := range tests {
		resp, err := client.Get(server.URL + tt.path)
		n := 0
		if err == nil {
			var body []byte
			body, err = io.ReadAll(resp.Body)
			n = len(body)
			_ = resp.Body.Close()
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want %q", tt.path, err, tt.want)
		}
		if tt.want != "" && n > 100 {
			t.Errorf("%s: %d bytes were read", tt.path, n)
		}
	}
}
