package dial

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func get(client *http.Client, url string) (int, error) {
	resp, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// tlsServer starts an HTTPS server for example.com. It returns the roots to trust.
func tlsServer(t *testing.T, maxVersion uint16) (url string, roots []byte) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS = &tls.Config{MaxVersion: maxVersion}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, certPEM(server.Certificate())
}

func certPEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func TestTLS(t *testing.T) {
	t.Parallel()
	url, roots := tlsServer(t, tls.VersionTLS13)
	oldURL, oldRoots := tlsServer(t, tls.VersionTLS12)

	tests := []struct {
		name       string
		url        string
		roots      []byte
		serverName string
		wantErr    string
	}{
		{"trusted", url, roots, "example.com", ""},
		{"another name", url, roots, "example.net", "not example.net"},
		{"TLS 1.2", oldURL, oldRoots, "example.com", "protocol version not supported"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			config, err := TLSConfig(tt.roots, tt.serverName)
			if err != nil {
				t.Fatal(err)
			}
			_, err = get(HTTPClient(time.Minute, config), tt.url)
			if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}

	t.Run("another root", func(t *testing.T) {
		t.Parallel()
		client := HTTPClient(time.Minute, nil) // the system's roots
		if _, err := get(client, url); err == nil {
			t.Error("a certificate of an unknown root was accepted")
		}
	})
}

func TestTLSConfigRefuses(t *testing.T) {
	t.Parallel()
	_, roots := tlsServer(t, tls.VersionTLS13)
	if _, err := TLSConfig(nil, "example.com"); err == nil {
		t.Error("no roots: no error")
	}
	if _, err := TLSConfig(roots, ""); err == nil {
		t.Error("no server name: no error")
	}
}

func TestRedirectIsAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusFound))
	t.Cleanup(server.Close)
	_, err := get(HTTPClient(time.Minute, nil), server.URL)
	if err == nil || !strings.Contains(err.Error(), "/elsewhere, which is not followed") {
		t.Errorf("error %v, want one that names the redirect", err)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	if _, err := get(HTTPClient(50*time.Millisecond, nil), server.URL); err == nil {
		t.Error("no error from a server that does not answer")
	}
}

func TestProxiedHTTPClientAsksItsProxy(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.RequestURI }))
	t.Cleanup(proxy.Close)

	const url = "http://helloworld.sample:5000/hello"
	client := ProxiedHTTPClient(time.Minute, strings.TrimPrefix(proxy.URL, "http://"), 4)
	if _, err := get(client, url); err != nil {
		t.Fatal(err)
	}
	if got := <-asked; got != url {
		t.Errorf("the proxy was asked for %s, want %s", got, url)
	}
}
