package sds

import (
	"context"
	"log/slog"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// StreamSecrets implements state-of-the-world SDS. A response holds only the changed
// secrets, which the protocol allows for this type.
func (s *Server) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	sub := &subscription{log: s.log}
	return serve(stream.Context(), s, sub, stream.Recv, sub.request, func(due []*secret, nonce string) error {
		response := &discoveryv3.DiscoveryResponse{TypeUrl: xdswire.SecretType, Nonce: nonce}
		for _, d := range due {
			// The version of any secret identifies the response.
			response.VersionInfo = d.version
			response.Resources = append(response.Resources, d.body)
		}
		return stream.Send(response)
	})
}

// DeltaSecrets implements incremental SDS.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	sub := &subscription{log: s.log, names: map[string]string{}}
	return serve(stream.Context(), s, sub, stream.Recv, sub.deltaRequest, func(due []*secret, nonce string) error {
		response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xdswire.SecretType, Nonce: nonce}
		for _, d := range due {
			response.SystemVersionInfo = d.version
			response.Resources = append(response.Resources, &discoveryv3.Resource{
				Name: d.name, Version: d.version, Resource: d.body,
			})
		}
		return stream.Send(response)
	})
}

// serve runs one stream of either variant: it passes requests to handle, and sends the due
// secrets after each request and after each Update.
func serve[Request any](ctx context.Context, s *Server, sub *subscription,
	recv func() (Request, error), handle func(Request) error, send func(due []*secret, nonce string) error,
) error {
	requests := make(chan Request)
	gone := make(chan struct{})
	go func() { // ends with the stream: recv fails once serve has returned
		defer close(gone)
		for {
			req, err := recv()
			if err != nil {
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		secrets, changed := s.current()
		if due := sub.due(secrets); len(due) > 0 {
			for _, d := range due {
				if d.version == missing {
					s.lacking.Add(1)
				}
			}
			sub.last = sub.nonces.Next()
			if err := send(due, sub.last); err != nil {
				return err
			}
		}
		var files <-chan time.Time
		if sub.lacksFile() {
			files = time.After(fileInterval)
		}
		select {
		case <-files:
		case req := <-requests:
			if err := handle(req); err != nil {
				return err
			}
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-gone: // the client closed the stream or the connection
			return nil
		}
	}
}

// subscription is the state of one stream, owned by its goroutine.
type subscription struct {
	log    *slog.Logger
	names  map[string]string // subscribed name → version last sent, or ""
	order  []string          // the same names in the order of subscription
	nonces xdswire.Nonces
	last   string // nonce of the last response
}

// due returns the subscribed secrets whose content was not sent yet, and records them as
// sent.
func (u *subscription) due(secrets map[string]*secret) []*secret {
	var due []*secret
	for _, name := range u.order {
		s := secrets[name]
		if u.mayLack(name) {
			s = fileSecret(name)
		}
		if s != nil && s.version != u.names[name] {
			u.names[name] = s.version
			due = append(due, s)
		}
	}
	return due
}

// fileInterval is the interval between looks for files that are missing.
const fileInterval = time.Second

// lacksFile reports whether files of a subscribed secret are missing.
func (u *subscription) lacksFile() bool {
	return slices.ContainsFunc(u.order, u.mayLack)
}

// mayLack reports whether a file of a secret was missing when it was sent, or the secret
// was not sent.
func (u *subscription) mayLack(name string) bool {
	return isFile(name) && (u.names[name] == "" || u.names[name] == missing)
}

// request handles a state-of-the-world request, whose names replace the subscription. It
// ignores replies to any response but the last.
func (u *subscription) request(req *discoveryv3.DiscoveryRequest) error {
	if err := checkType(req.GetTypeUrl()); err != nil {
		return err
	}
	if nonce := req.GetResponseNonce(); nonce != "" && u.last != "" && nonce != u.last {
		return nil
	}
	if req.GetErrorDetail() != nil {
		u.refused(req.GetErrorDetail())
		return nil
	}
	before := u.names
	u.names, u.order = make(map[string]string, len(before)), nil
	for _, name := range req.GetResourceNames() {
		if err := u.add(name, before[name]); err != nil {
			return err
		}
	}
	return nil
}

// deltaRequest handles an incremental request. A secret that is subscribed again is sent
// again.
func (u *subscription) deltaRequest(req *discoveryv3.DeltaDiscoveryRequest) error {
	if err := checkType(req.GetTypeUrl()); err != nil {
		return err
	}
	if req.GetErrorDetail() != nil {
		u.refused(req.GetErrorDetail())
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		u.remove(name)
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		u.remove(name)
		if err := u.add(name, ""); err != nil {
			return err
		}
	}
	return nil
}

func (u *subscription) add(name, version string) error {
	if _, known := u.names[name]; known {
		return nil
	}
	if len(u.order) == maxNames {
		return status.Errorf(codes.ResourceExhausted, "more than %d secrets on one stream", maxNames)
	}
	if name != mesh.SecretCertificate && name != mesh.SecretRoots && version == "" && !isFile(name) {
		u.log.Warn("envoy asks for a secret that the agent does not have", "secret", name)
	}
	u.names[name] = version
	u.order = append(u.order, name)
	return nil
}

func (u *subscription) remove(name string) {
	delete(u.names, name)
	u.order = slices.DeleteFunc(u.order, func(n string) bool { return n == name })
}

// refused logs a NACK. The same content is not sent again: Envoy would refuse it again.
func (u *subscription) refused(cause *rpcstatus.Status) {
	u.log.Error("envoy refused a secret", "secrets", u.order, "cause", cause.GetMessage())
}

func checkType(url string) error {
	if url != "" && url != xdswire.SecretType {
		return status.Errorf(codes.InvalidArgument, "type %q is not served here, only %s", url, xdswire.SecretType)
	}
	return nil
}
