package xds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// trustName is the name of the mesh's validation context; agents use it for their
// proxies, too.
const trustName = "ROOTCA"

// Trust holds the roots and revocation lists to check peers in the mesh with. It is
// immutable and not secret.
type Trust struct {
	version string
	body    *anypb.Any
}

// NewTrust makes a Trust from PEM. Without lists no certificate is revoked.
func NewTrust(roots, lists []byte) (*Trust, error) {
	context := &tlsv3.CertificateValidationContext{TrustedCa: inlineBytes(roots)}
	if len(lists) > 0 {
		context.Crl = inlineBytes(lists)
	}
	body, err := xdswire.Any(&tlsv3.Secret{Name: trustName, Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body.GetValue())
	return &Trust{version: hex.EncodeToString(sum[:8]), body: body}, nil
}

func inlineBytes(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}

// fetchMethods returns FetchSecrets, the only unary method. Agents in pods without a file
// of revocation lists call it from time to time for the Trust of their Envoy. A request
// with the current version gets an answer without resources.
func fetchMethods(s *service) []grpc.MethodDesc {
	return []grpc.MethodDesc{unaryMethod("FetchSecrets", func(ctx context.Context, _ *xdswire.Received, r *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
		return s.fetchTrust(ctx, r)
	})}
}

func (s *service) fetchTrust(ctx context.Context, r *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	if names := r.GetResourceNames(); s.access.Trust == nil || s.access.Authenticate == nil || len(names) != 1 || names[0] != trustName {
		return nil, status.Error(codes.Unimplemented, "FetchSecrets serves "+trustName+" over TLS only: request other secrets on a stream")
	}
	if _, err := s.authenticate(ctx); err != nil {
		return nil, err
	}
	trust, err := s.access.Trust()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	answer := &discoveryv3.DiscoveryResponse{TypeUrl: xdswire.SecretType, VersionInfo: trust.version}
	if r.GetVersionInfo() != trust.version {
		answer.Resources = []*anypb.Any{trust.body}
	}
	return answer, nil
}

// recheck returns a function that checks whether the caller of ctx still has access.
func (s *service) recheck(ctx context.Context) func() error {
	if s.access.Recheck == nil {
		return func() error { return nil }
	}
	return func() error {
		if err := s.access.Recheck(ctx); err != nil {
			return status.Error(codes.Unauthenticated, err.Error())
		}
		return nil
	}
}

// Recheck ends the streams of callers whose certificate or root was revoked. It checks
// one or two signatures for each stream.
func (h *Hub) Recheck() {
	for _, s := range h.subscribers() {
		if err := s.recheck(); err != nil {
			h.cfg.Metrics.revoked.Inc()
			s.session.end(err)
		}
	}
}
