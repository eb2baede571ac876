package revocation

import (
	"context"
	"fmt"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// controlPlane is the place of lists from the control plane in findings.
const controlPlane = "the control plane"

// ask requests the lists from the control plane, if a request is due, and reports whether
// they changed.
func (l *Lists) ask(ctx context.Context) bool {
	now := l.cfg.Now()
	if now.Before(l.askAt) {
		return false
	}
	l.askAt = now.Add(askInterval*9/10 + time.Duration(l.cfg.Rand.Float64()*float64(askInterval/5)))
	answer, err := l.fetch(ctx)
	switch {
	case status.Code(err) == codes.Unimplemented:
		// Another control plane: only a file can provide lists.
		l.askAt = now.Add(askNever)
		return false
	case err != nil:
		if l.version == "" { // Envoy may accept revoked peers meanwhile
			l.askAt = now.Add(min(askSoon<<l.failures, askInterval))
			l.failures = min(l.failures+1, maxFailures)
		}
		changed := text(l.source.err) != err.Error()
		l.source.name, l.source.err = controlPlane, err
		return changed
	case len(answer.GetResources()) == 0 && answer.GetVersionInfo() == l.version:
		changed := l.source.err != nil
		l.source.err = nil
		return changed
	}
	lists, err := listsOf(answer)
	l.source = source{name: controlPlane, data: lists, err: err}
	if err == nil {
		l.version = answer.GetVersionInfo()
	}
	return true
}

func (l *Lists) fetch(ctx context.Context) (answer *discoveryv3.DiscoveryResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = l.cfg.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		answer, err = secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{
			TypeUrl: xdswire.SecretType, ResourceNames: []string{mesh.SecretRoots}, VersionInfo: l.version,
		}, grpc.MaxCallRecvMsgSize(maxLists+1<<20))
		return err
	})
	return answer, err
}

// listsOf returns the lists in a response, nil when there are none.
func listsOf(answer *discoveryv3.DiscoveryResponse) ([]byte, error) {
	for _, body := range answer.GetResources() {
		var s tlsv3.Secret
		if err := body.UnmarshalTo(&s); err != nil {
			return nil, fmt.Errorf("revocation lists of the control plane: %w", err)
		}
		if s.GetName() == mesh.SecretRoots {
			if lists := s.GetValidationContext().GetCrl().GetInlineBytes(); len(lists) > 0 {
				return lists, nil
			}
			return nil, nil
		}
	}
	return nil, fmt.Errorf("revocation lists of the control plane: the response lacks %s", mesh.SecretRoots)
}
