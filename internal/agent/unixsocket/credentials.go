package unixsocket

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/meshctl/meshctl/internal/certs"
)

// minPing is the least interval between the pings of a client. Envoy sends one every 30 s, also
// when it has nothing to say.
const minPing = 5 * time.Second

// ServerOptions returns the options of a gRPC server on a socket. With a proof, which may be nil,
// only its Envoy may connect.
func ServerOptions(proof *Proof, socket net.Addr, log *slog.Logger) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if proof != nil {
		options = append(options, grpc.Creds(&envoyOnly{proof.credentials(), log.With("socket", socket.String())}))
	}
	return options
}

// Proof is a certificate with its key by which an agent and its Envoy prove themselves to each
// other. Both are made at the start, and only the bootstrap of Envoy has them. Thus nobody gets
// secrets by a listener of Envoy that forwards to a socket, although Envoy is the right user, and
// no other server answers Envoy in the place of the agent.
type Proof struct {
	Cert, Key []byte // PEM
	pair      tls.Certificate
	parsed    *x509.Certificate
}

// NewProof makes a proof.
func NewProof() (*Proof, error) {
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		return nil, fmt.Errorf("make a key for the sockets of Envoy: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "sockets of meshctl agent"},
		// The proof ends with the agent, whatever the clock says.
		NotBefore:   time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:    time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the sockets of Envoy: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the sockets of Envoy: %w", err)
	}
	encoded, err := certs.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	return &Proof{
		Cert: certs.EncodeCerts(parsed), Key: encoded,
		pair: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, parsed: parsed,
	}, nil
}

func (p *Proof) credentials() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{p.pair},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              certs.Pool([]*x509.Certificate{p.parsed}),
		SessionTicketsDisabled: true,
	})
}

// envoyOnly logs the connections that it refuses.
type envoyOnly struct {
	credentials.TransportCredentials
	log *slog.Logger
}

// ServerHandshake implements credentials.TransportCredentials.
func (e *envoyOnly) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := e.TransportCredentials.ServerHandshake(conn)
	if err != nil && !errors.Is(err, io.EOF) { // a program that looks whether the socket is in use says nothing
		e.log.Warn("refused a connection that is not from Envoy itself: does an object of the mesh name the socket?", "error", err)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (e *envoyOnly) Clone() credentials.TransportCredentials {
	return &envoyOnly{e.TransportCredentials.Clone(), e.log}
}
