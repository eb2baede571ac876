package sds

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/agent/unixsocket"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is how long anything may take on a slow machine.
const deadline = 2 * time.Minute

var (
	first  = Secrets{Chain: []byte("chain 1"), Key: []byte("key 1"), Roots: []byte("roots")}
	second = Secrets{Chain: []byte("chain 2"), Key: []byte("key 2"), Roots: []byte("roots")}
)

// serveTest runs a server on a socket and returns a client of it.
func serveTest(t *testing.T) (*Server, secretv3.SecretDiscoveryServiceClient, context.Context) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	path := filepath.Join(harness.ShortDir(t), "sds", "socket")
	listener, err := unixsocket.Listen(path, log)
	if err != nil {
		t.Fatal(err)
	}
	server := New(log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener, nil) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	callCtx, stop := context.WithTimeout(ctx, deadline)
	t.Cleanup(stop)
	return server, secretv3.NewSecretDiscoveryServiceClient(conn), callCtx
}

func update(t *testing.T, s *Server, secrets Secrets) {
	t.Helper()
	if err := s.Update(secrets); err != nil {
		t.Fatal(err)
	}
}

// content returns the distinguishing part of a secret.
func content(t *testing.T, r interface{ GetValue() []byte }) string {
	t.Helper()
	var s tlsv3.Secret
	if err := proto.Unmarshal(r.GetValue(), &s); err != nil {
		t.Fatal(err)
	}
	if c := s.GetTlsCertificate(); c != nil {
		return s.GetName() + ": " + string(c.GetCertificateChain().GetInlineBytes()) + ", " + string(c.GetPrivateKey().GetInlineBytes())
	}
	return s.GetName() + ": " + string(s.GetValidationContext().GetTrustedCa().GetInlineBytes())
}

type sotw struct {
	t *testing.T
	secretv3.SecretDiscoveryService_StreamSecretsClient
}

func (s sotw) ask(nonce string, refused string, names ...string) {
	s.t.Helper()
	req := &discoveryv3.DiscoveryRequest{TypeUrl: xdswire.SecretType, ResponseNonce: nonce, ResourceNames: names}
	if refused != "" {
		req.ErrorDetail = &rpcstatus.Status{Message: refused}
	}
	if err := s.Send(req); err != nil {
		s.t.Fatal(err)
	}
}

func (s sotw) want(contents ...string) (nonce string) {
	s.t.Helper()
	resp, err := s.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	var got []string
	for _, r := range resp.GetResources() {
		got = append(got, content(s.t, r))
	}
	if strings.Join(got, "; ") != strings.Join(contents, "; ") {
		s.t.Fatalf("got %q, want %q", got, contents)
	}
	if resp.GetTypeUrl() != xdswire.SecretType || resp.GetVersionInfo() == "" || resp.GetNonce() == "" {
		s.t.Errorf("incomplete response: type %q version %q nonce %q", resp.GetTypeUrl(), resp.GetVersionInfo(), resp.GetNonce())
	}
	return resp.GetNonce()
}

func TestStreamSecrets(t *testing.T) {
	server, client, ctx := serveTest(t)
	raw, err := client.StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stream := sotw{t, raw}

	stream.ask("", "", mesh.SecretCertificate) // before there is one
	update(t, server, first)
	nonce := stream.want("default: chain 1, key 1")
	stream.ask(nonce, "", mesh.SecretCertificate)
	update(t, server, first) // nothing new: the next response must be of second
	update(t, server, second)
	nonce = stream.want("default: chain 2, key 2")
	stream.ask("7777", "", "other")                  // stale: not even its names count
	stream.ask(nonce, "bad", mesh.SecretCertificate) // refused: not sent again
	stream.ask(nonce, "", mesh.SecretCertificate, mesh.SecretRoots)
	nonce = stream.want("ROOTCA: roots")
	stream.ask(nonce, "", mesh.SecretRoots)
	stream.ask(nonce, "", mesh.SecretRoots, mesh.SecretCertificate) // asked for again: sent again
	stream.want("default: chain 2, key 2")
	update(t, server, Secrets{Chain: []byte("chain 2"), Key: []byte("key 2"), Roots: []byte("more roots")})
	stream.want("ROOTCA: more roots")
	if n := server.FileFailures(); n != 0 {
		t.Errorf("%d secrets lacked a file before one was requested", n)
	}
	stream.ask("", "", "file-root:"+filepath.Join(t.TempDir(), "none"))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if n := server.FileFailures(); n != 1 {
		t.Errorf("%d secrets lacked a file, want 1", n)
	}
}

func TestDeltaSecrets(t *testing.T) {
	server, client, ctx := serveTest(t)
	stream, err := client.DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		req.TypeUrl = xdswire.SecretType
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	want := func(contents ...string) string {
		t.Helper()
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range resp.GetResources() {
			got = append(got, content(t, r.GetResource()))
			if r.GetVersion() == "" || r.GetName() == "" {
				t.Errorf("resource without name or version: %q %q", r.GetName(), r.GetVersion())
			}
		}
		if strings.Join(got, "; ") != strings.Join(contents, "; ") {
			t.Fatalf("got %q, want %q", got, contents)
		}
		return resp.GetNonce()
	}

	update(t, server, first)
	ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{mesh.SecretRoots, mesh.SecretCertificate, "unknown"}})
	nonce := want("ROOTCA: roots", "default: chain 1, key 1")
	ask(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: nonce, ErrorDetail: &rpcstatus.Status{Message: "bad"}})
	update(t, server, first)
	update(t, server, second)
	want("default: chain 2, key 2")
	ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{mesh.SecretCertificate}})
	ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{mesh.SecretRoots}}) // again: sent again
	want("ROOTCA: roots")
	update(t, server, Secrets{Chain: []byte("chain 3"), Roots: []byte("more roots")})
	want("ROOTCA: more roots")
}

func TestStreamRefuses(t *testing.T) {
	_, client, ctx := serveTest(t)
	many := make([]string, maxNames+1)
	for i := range many {
		many[i] = strings.Repeat("x", i+1)
	}
	for name, tc := range map[string]struct {
		req  *discoveryv3.DiscoveryRequest
		code codes.Code
	}{
		"type":    {&discoveryv3.DiscoveryRequest{TypeUrl: "other"}, codes.InvalidArgument},
		"names":   {&discoveryv3.DiscoveryRequest{ResourceNames: many}, codes.ResourceExhausted},
		"message": {&discoveryv3.DiscoveryRequest{VersionInfo: strings.Repeat("x", maxMessage)}, codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := client.StreamSecrets(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(tc.req); err != nil {
				t.Fatal(err)
			}
			_, err = stream.Recv()
			if tc.code != codes.Unknown && status.Code(err) != tc.code || err == nil {
				t.Errorf("got %v, want code %v", err, tc.code)
			}
		})
	}
	if _, err := client.FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("FetchSecrets: got %v, want Unimplemented", err)
	}
}
