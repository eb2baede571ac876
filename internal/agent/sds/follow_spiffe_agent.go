package sds

import (
	"context"
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxSecrets bounds a response of another SPIFFE agent, in bytes.
const maxSecrets = 1 << 20

// Follow passes the certificate and the roots that another SPIFFE agent serves at a Unix socket to
// use, and each change of them, until ctx or a stream ends. It requests what Envoy requests: the
// secrets default and ROOTCA, each on a stream of its own. If use returns an error, the agent
// learns that the secret was refused.
func Follow(ctx context.Context, socket, node string, use func(Secrets) error) error {
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the directory of the socket decides who listens there
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSecrets)))
	if err != nil {
		return err
	}
	defer conn.Close()
	tasks, ctx := errgroup.WithContext(ctx)
	type change struct {
		secret *tlsv3.Secret
		done   chan error
	}
	changes := make(chan change)
	for _, name := range []string{mesh.SecretCertificate, mesh.SecretRoots} {
		tasks.Go(func() error {
			err := followOne(ctx, conn, node, name, func(s *tlsv3.Secret) error {
				c := change{s, make(chan error, 1)}
				select {
				case changes <- c:
				case <-ctx.Done():
					return ctx.Err()
				}
				select {
				case err := <-c.done:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			return fmt.Errorf("secret %s: %w", name, err)
		})
	}
	tasks.Go(func() error {
		var now Secrets
		for {
			select {
			case c := <-changes:
				err := now.set(c.secret)
				if err == nil && len(now.Chain) > 0 && len(now.Roots) > 0 {
					err = use(now)
				}
				c.done <- err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return tasks.Wait()
}

// followOne passes each version of a secret to use until the stream ends.
func followOne(ctx context.Context, conn *grpc.ClientConn, node, name string, use func(*tlsv3.Secret) error) error {
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		return err
	}
	request := &discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: node}, ResourceNames: []string{name}, TypeUrl: xdswire.SecretType,
	}
	for {
		if stream.Send(request) != nil {
			_, err := stream.Recv() // has the cause
			return errors.Join(errors.New("the stream ended"), err)
		}
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		request.ResponseNonce, request.ErrorDetail = response.GetNonce(), nil
		err = nil
		for _, r := range response.GetResources() {
			s := &tlsv3.Secret{}
			if r.UnmarshalTo(s) != nil { // whose error might contain the secret
				err = errors.New("the response is no secret")
			} else if s.GetName() == name {
				err = use(s)
			}
		}
		if err == nil {
			request.VersionInfo = response.GetVersionInfo()
		} else {
			request.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		}
	}
}

// set replaces a part of the secrets.
func (s *Secrets) set(of *tlsv3.Secret) error {
	if roots := of.GetValidationContext(); roots != nil {
		if s.Roots = sourceText(roots.GetTrustedCa()); len(s.Roots) == 0 {
			return errors.New("it has no roots (trusted_ca)")
		}
		return nil
	}
	pair := of.GetTlsCertificate()
	chain, key := sourceText(pair.GetCertificateChain()), sourceText(pair.GetPrivateKey())
	if len(chain) == 0 || len(key) == 0 {
		return errors.New("it has no certificate with its key")
	}
	s.Chain, s.Key = chain, key
	return nil
}

func sourceText(d *corev3.DataSource) []byte {
	if text := d.GetInlineString(); text != "" {
		return []byte(text)
	}
	return d.GetInlineBytes()
}
