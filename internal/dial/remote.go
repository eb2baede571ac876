package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// A connection without traffic for pingAfter gets an HTTP/2 ping, and ends if there is
// no answer within pingTimeout. Users so learn of a lost server within seconds.
const (
	pingAfter   = 3 * time.Second
	pingTimeout = 2 * time.Second
)

// ServerTLS holds how a client verifies a server with an address from an untrusted
// source.
type ServerTLS struct {
	// Roots holds PEM certificates. Nil means the roots of the system.
	Roots []byte
	// Name is the name that the certificate must have. Empty means the host of the URL.
	Name string
	// Insecure turns verification off.
	Insecure bool
	// Verify, if not nil, replaces the check of roots and name. It gets the certificate
	// chain of the server.
	Verify       func(shown []*x509.Certificate) error
	Certificates []tls.Certificate
}

// Transport returns a transport for HTTP/2 and HTTP/1.1 that connects through the guard
// and is Bounded by limit bytes. TLS 1.2 suffices, because some API servers are behind
// old proxies. The transport notices a dead HTTP/2 connection within 5 seconds. proxy
// may be nil; the guard also checks its address.
func (g Guard) Transport(server ServerTLS, proxy *url.URL, limit int64) (http.RoundTripper, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         server.Name,
		InsecureSkipVerify: server.Insecure, //nolint:gosec // the user allows it for single clusters
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

// Client returns a client over Transport whose requests, including the body, end within
// timeout. A redirect is an error.
func (g Guard) Client(timeout time.Duration, server ServerTLS, limit int64) (*http.Client, error) {
	t, err := g.Transport(server, nil, limit)
	if err != nil {
		return nil, err
	}
	return newClient(timeout, t), nil
}
