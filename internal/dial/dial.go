// Package dial makes all HTTP and TLS clients of meshctl. They ignore proxies from the
// environment and bound every wait. Unless a comment says otherwise they follow no
// redirects and require TLS 1.3.
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

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// connectTimeout bounds one TCP connect and one TLS handshake.
const connectTimeout = 5 * time.Second

// TLSConfig returns a client configuration for TLS 1.3. The server must present a
// certificate for serverName that chains to one of the PEM roots; the system's roots
// are not trusted. The client presents certs, if any.
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

// UnverifiedTLSConfig is TLSConfig without verification of the server, for users who
// ask for it.
func UnverifiedTLSConfig(serverName string, certs ...tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         serverName,
		Certificates:       certs,
		InsecureSkipVerify: true, //nolint:gosec // it is asked for
	}
}

// ShownChain connects to address, host:port, and returns the certificate chain of the
// TLS server. It verifies nothing and sends nothing. A server that requires a client
// certificate has presented its own by then. serverName is the SNI; empty means the
// host of the address. TLS 1.2 suffices, as the server may be old.
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

// GRPC returns a client of the gRPC server at target. It does not connect yet.
func GRPC(target string, config *tls.Config, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		// By default gRPC waits 20 s for an address at which nothing answers.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
	}, opts...)...)
}

// HTTPClient returns a client whose requests, including the body, end within timeout.
// A redirect is an error. tlsConfig may be nil for http:// URLs.
func HTTPClient(timeout time.Duration, tlsConfig *tls.Config) *http.Client {
	return newClient(timeout, newTransport(tlsConfig))
}

// ProxiedHTTPClient is HTTPClient for http:// URLs through the HTTP proxy at proxy,
// host:port. It keeps up to connections idle connections to the proxy.
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

// HTTPClientVia is HTTPClient for http:// URLs. It connects with dial, which may use
// another connection as a tunnel.
func HTTPClientVia(timeout time.Duration, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	transport := newTransport(nil)
	transport.DialContext = dial
	return newClient(timeout, transport)
}

// HTTPClientOver returns a client for a transport that the caller made. It follows
// no redirect. Its requests end with their contexts only.
func HTTPClientOver(transport http.RoundTripper) *http.Client { return newClient(0, transport) }
