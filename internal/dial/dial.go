// Package dial makes the clients that meshctl connects with: TLS 1.3, no
// redirects, no proxies from the environment, and a bound on every wait.
package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// connectTimeout bounds one TCP connect and one TLS handshake.
const connectTimeout = 5 * time.Second

// TLSConfig returns the client side of TLS 1.3. The peer has to show a
// certificate for serverName from one of the roots, PEM; the system's roots
// are not used. certs, if any, are what the client shows.
func TLSConfig(roots []byte, serverName string, certs ...tls.Certificate) (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		return nil, errors.New("no PEM certificate among the roots")
	}
	if serverName == "" {
		return nil, errors.New("no server name to check the peer's certificate against")
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      pool,
		ServerName:   serverName,
		Certificates: certs,
	}, nil
}

// UnverifiedTLSConfig is TLSConfig for a peer that nobody verifies: for people who
// ask for that.
func UnverifiedTLSConfig(serverName string, certs ...tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         serverName,
		Certificates:       certs,
		InsecureSkipVerify: true, //nolint:gosec // it is asked for
	}
}

// ShownChain connects to address, host:port, and returns the certificates that
// the TLS server there shows, the first being its own. It verifies nothing,
// shows nothing and sends nothing: a server that then asks for a client's
// certificate has shown its own before. serverName is what to ask for; empty
// means the host. TLS 1.2 is enough, for what is looked at may be old.
func ShownChain(ctx context.Context, address, serverName string) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if serverName == "" {
		serverName, _, _ = net.SplitHostPort(address)
	}
	var shown []*x509.Certificate
	client := tls.Client(conn, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         serverName,
		NextProtos:         []string{"istio", "h2", "http/1.1"}, // of the mesh, of gRPC, of others
		InsecureSkipVerify: true,                                //nolint:gosec // the caller judges what is shown
		VerifyConnection: func(state tls.ConnectionState) error {
			shown = state.PeerCertificates
			return nil
		},
	})
	if err := client.HandshakeContext(ctx); err != nil && shown == nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return shown, nil
}

// HTTPClient returns a client whose requests, body included, end within
// timeout. It follows no redirect: the answer that asks for one is an error.
// tlsConfig may be nil if only http:// addresses are asked.
func HTTPClient(timeout time.Duration, tlsConfig *tls.Config) *http.Client {
	return newClient(timeout, newTransport(tlsConfig))
}

// ProxiedHTTPClient is HTTPClient for http:// addresses behind the HTTP proxy
// at proxy, host:port. It keeps up to connections idle connections to it.
func ProxiedHTTPClient(timeout time.Duration, proxy string, connections int) *http.Client {
	transport := newTransport(nil)
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})
	transport.MaxIdleConnsPerHost = connections
	return newClient(timeout, transport)
}

func newTransport(tlsConfig *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		IdleConnTimeout:        30 * time.Second,
	}
}

func newClient(timeout time.Duration, transport http.RoundTripper) *http.Client {
	return &http.Client{
		Timeout:   timeout,
		Transport: transport,
		CheckRedirect: func(req *http.Request, _ []*http.Request) error {
			return fmt.Errorf("redirected to %s, which is not followed", req.URL.Redacted())
		},
	}
}

// HTTPClientVia is HTTPClient for http:// addresses that are reached by dial,
// such as through another connection.
func HTTPClientVia(timeout time.Duration, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	transport := newTransport(nil)
	transport.DialContext = dial
	return newClient(timeout, transport)
}
