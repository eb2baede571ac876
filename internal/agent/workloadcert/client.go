package workloadcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Limits in bytes.
const (
	maxTokenFile = 64 << 10
	maxRootFile  = 1 << 20
	maxResponse  = 1 << 20
	// window is the number of bytes that a server may send before the client acknowledges them.
	// Without it, gRPC measures the connection and sends a ping for each response.
	window = 1 << 20
)

// Client requests certificates from a certificate authority that speaks Istio's protocol.
// For each request it reads its files, as they may be rotated, and opens a connection, as
// requests are hours apart.
type Client struct {
	// Servers are the addresses of the authority. A call that finds a server unavailable is
	// an error; the next call uses the next server.
	Servers []Server
	// Kind is what the servers are, in errors.
	Kind string
	// RootFile holds the roots of the servers' certificates, PEM. Empty means none besides those
	// of Current.
	RootFile string
	// TokenFile holds the token that proves the identity of the workload.
	TokenFile string
	// Cluster is the cluster that issued the token.
	Cluster mesh.ClusterID
	// KeyExchanges are the offered key exchanges; empty means Go's default.
	KeyExchanges []tls.CurveID

	failed atomic.Uint32 // calls that found their server unavailable
}

// Server is an address, host:port, and the name that the certificate there must hold.
type Server struct{ Addr, Name string }

// Current holds the certificate and roots of the last response. Either may be missing.
type Current struct {
	Certificate *tls.Certificate
	// Roots are trusted in addition to the roots in the file, which may be older: the
	// authority may move to another root.
	Roots []*x509.Certificate
}

// Sign returns the certificate for a PEM request with the given lifetime, and the roots of
// the authority and of RootFile.
func (c *Client) Sign(ctx context.Context, csr []byte, ttl time.Duration, current Current) (Response, error) {
	rootFile, err := c.roots()
	if err != nil {
		return Response{}, err
	}
	var chain []string
	err = c.call(ctx, rootFile, current, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		resp, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{
			Csr:              string(csr),
			ValidityDuration: int64(ttl / time.Second),
		})
		chain = resp.GetCertChain()
		return err
	})
	if err != nil {
		return Response{}, err
	}
	return parseResponse(chain, rootFile)
}

// Call calls another service of the authority with the same credentials as Sign.
func (c *Client) Call(ctx context.Context, current Current, do func(context.Context, grpc.ClientConnInterface) error) error {
	rootFile, err := c.roots()
	if err != nil {
		return err
	}
	return c.call(ctx, rootFile, current, do)
}

// answerError is an error of the authority with a readable text.
type answerError struct {
	text   string
	status *status.Status
}

func (e *answerError) Error() string { return e.text }

// GRPCStatus makes status.Code work.
func (e *answerError) GRPCStatus() *status.Status { return e.status }

func (c *Client) roots() ([]*x509.Certificate, error) {
	if c.RootFile == "" {
		return nil, nil
	}
	rootPEM, err := files.Read(c.RootFile, maxRootFile)
	if err != nil {
		return nil, fmt.Errorf("roots of the certificate authority: %w", err)
	}
	roots, err := certs.ParseCerts(rootPEM)
	if err != nil {
		return nil, fmt.Errorf("roots of the certificate authority: %s: %w", c.RootFile, err)
	}
	return roots, nil
}

// call makes one call over a new connection. The token and the client certificate prove the
// identity; one of them may be missing.
func (c *Client) call(ctx context.Context, roots []*x509.Certificate, current Current, do func(context.Context, grpc.ClientConnInterface) error) (err error) {
	header := metadata.Pairs("ClusterID", string(c.Cluster))
	token, err := c.token()
	switch {
	case err == nil:
		header.Set("authorization", "Bearer "+token)
	case current.Certificate == nil:
		return fmt.Errorf("without a certificate, a token must prove who the workload is: %w", err)
	}
	failed := c.failed.Load()
	server := c.Servers[int(failed)%len(c.Servers)]
	config, err := dial.TLSConfig(certs.EncodeCerts(slices.Concat(roots, current.Roots)...), server.Name)
	if err != nil {
		return err
	}
	config.CurvePreferences = c.KeyExchanges
	if current.Certificate != nil {
		config.Certificates = []tls.Certificate{*current.Certificate}
	}
	conn, err := dial.GRPC(server.Addr, config,
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
	)
	if err != nil {
		return err
	}
	defer func() {
		if closed := conn.Close(); err == nil { // the first error is the cause
			err = closed
		}
	}()
	err = do(metadata.NewOutgoingContext(ctx, header), conn)
	if s, ok := status.FromError(err); ok && err != nil {
		if s.Code() == codes.Unavailable {
			c.failed.CompareAndSwap(failed, failed+1) // other calls may have found the same
		}
		return &answerError{fmt.Sprintf("%s %s: %s: %s", c.Kind, server.Addr, s.Code(), s.Message()), s}
	}
	return err
}

func (c *Client) token() (string, error) {
	data, err := files.Read(c.TokenFile, maxTokenFile)
	if err != nil {
		return "", err
	}
	token := bytes.TrimSpace(data)
	if len(token) == 0 {
		return "", fmt.Errorf("token file %s is empty", c.TokenFile)
	}
	for _, b := range token {
		if b <= ' ' || b > '~' {
			return "", fmt.Errorf("token file %s does not hold a token", c.TokenFile)
		}
	}
	return string(token), nil
}

// Response is the response of an authority.
type Response struct {
	// Chain is the certificate and its intermediates, leaf first.
	Chain []*x509.Certificate
	// Roots sign peers.
	Roots []*x509.Certificate
}

// parseResponse reads the PEM texts of a response: the leaf, its issuers, and in the last
// text the roots. It adds the roots of the file, and drops roots from the chain: peers have
// them.
func parseResponse(chain []string, rootFile []*x509.Certificate) (Response, error) {
	if len(chain) < 2 {
		return Response{}, fmt.Errorf("the response has %d parts, want a certificate and the roots", len(chain))
	}
	var r Response
	for i, text := range chain {
		parsed, err := certs.ParseCerts([]byte(text))
		if err != nil {
			return Response{}, fmt.Errorf("part %d of the response: %w", i+1, err)
		}
		if i == len(chain)-1 {
			r.Roots = distinct(append(parsed, rootFile...))
		} else {
			r.Chain = append(r.Chain, parsed...)
		}
	}
	r.Chain = without(r.Chain, r.Roots)
	if len(r.Chain) == 0 {
		return Response{}, errors.New("the response holds only roots")
	}
	return r, nil
}
