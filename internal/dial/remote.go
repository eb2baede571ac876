package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// A connection that has been silent for pingAfter is asked whether it is alive,
// and is ended when it has not answered within pingTimeout: as fast as people
// want to know that a server is gone, for one ping each few seconds.
const (
	pingAfter   = 3 * time.Second
	pingTimeout = 2 * time.Second
)

// ServerTLS is how a server whose address others chose is verified.
type ServerTLS struct {
	// Roots are PEM certificates; nil means those of the system.
	Roots []byte
	// Name is what the certificate must be for; empty means the host of the URL.
	Name string
	// Insecure switches verification off.
	Insecure bool
	// Verify, when not nil, decides alone about the certificates that the server
	// shows, its own first: neither roots nor names are looked at besides.
	Verify       func(shown []*x509.Certificate) error
	Certificates []tls.Certificate
}

// Transport returns a transport for HTTP/2 and HTTP/1.1 that connects through
// the guard and is Bounded by limit bytes. TLS 1.2 is enough, for some API
// servers lie behind proxies that have no more. A connection that went dead is
// found within 5 seconds (HTTP/2). proxy may be nil; the guard holds for its address.
func (g Guard) Transport(server ServerTLS, proxy *url.URL, limit int64) (http.RoundTripper, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         server.Name,
		InsecureSkipVerify: server.Insecure, //nolint:gosec // the caller was told to, cluster by cluster
		Certificates:       server.Certificates,
	}
	if server.Roots != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(server.Roots) {
			return nil, errors.New("no PEM certificate among the roots")
		}
	}
	if verify := server.Verify; verify != nil {
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(s tls.ConnectionState) error { return verify(s.PeerCertificates) }
	}
	t := newTransport(config)
	t.DialContext = g.DialContext
	t.ForceAttemptHTTP2 = true
	t.MaxIdleConnsPerHost = 4
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return Bounded(t, limit), nil
}

// Client returns a client over Transport whose requests, body included, end
// within timeout. It follows no redirect.
func (g Guard) Client(timeout time.Duration, server ServerTLS, limit int64) (*http.Client, error) {
	t, err := g.Transport(server, nil, limit)
	if err != nil {
		return nil, err
	}
	return newClient(timeout, t), nil
}
