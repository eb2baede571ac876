package debug

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Type URLs of debug requests: a page by its name, and two pages with messages of
// their own.
const (
	pageType       = xdswire.DebugType
	synczType      = xdswire.DebugType + "/syncz"
	configDumpType = xdswire.DebugType + "/config_dump"
)

// XDS answers a request for a debug type. Istio's tools name the page as the only
// resource of istio.io/debug. Errors are gRPC errors.
func (p *Pages) XDS(ctx context.Context, who mesh.Caller, typeURL string, names []string) ([]*anypb.Any, error) {
	rights := p.RightsOf(who.Identity)
	if rights == (Rights{}) {
		return nil, unavailableTo(who)
	}
	switch typeURL {
	case synczType:
		return p.clientConfigs(rights)
	case pageType, configDumpType:
		if len(names) != 1 {
			return nil, status.Error(codes.InvalidArgument, "exactly one debug request is required")
		}
		if typeURL == configDumpType {
			return p.dumpOf(who, rights, names[0])
		}
		return p.page(ctx, who, rights, names[0])
	}
	return nil, status.Errorf(codes.InvalidArgument, "type %.200q is not known: want %s, %s or %s", typeURL, pageType, synczType, configDumpType)
}

func unavailableTo(who mesh.Caller) error {
	return status.Errorf(codes.PermissionDenied, "the debug info is not available for current identity: %q", who.Identity)
}

// page returns the body that the page has over HTTP, also of an error.
func (p *Pages) page(ctx context.Context, who mesh.Caller, rights Rights, resource string) ([]*anypb.Any, error) {
	target, err := url.Parse(resource)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%.200q is no page", resource)
	}
	query := target.Query()
	body, err := p.get(ctx, rights, target.Path, query)
	if err != nil {
		told, ok := errors.AsType[*Error](err)
		switch {
		case !ok:
			return nil, status.FromContextError(err).Err()
		case told.Status == http.StatusForbidden, told.Status == http.StatusNotFound && !rights.mayBeOf(query.Get("proxyID")):
			return nil, unavailableTo(who)
		}
		body = []byte(told.Text + "\n")
	}
	return []*anypb.Any{{TypeUrl: pageType, Value: body}}, nil
}

// mayBeOf reports whether the rights could include a proxy that is not connected here.
func (c Rights) mayBeOf(proxy string) bool {
	return c.All || strings.HasSuffix(proxy, "."+c.Namespace) || strings.Contains(proxy, "."+c.Namespace+"-")
}

// dumpOf returns the configuration of one proxy, nothing if it is not connected.
func (p *Pages) dumpOf(who mesh.Caller, rights Rights, name string) ([]*anypb.Any, error) {
	x, err := p.find(rights, name)
	switch {
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case x != nil:
		return dump(p.cfg.Sent(x.ID), false)
	case !rights.mayBeOf(name):
		return nil, unavailableTo(who)
	}
	return nil, nil
}

// clientConfigs returns the state of each proxy as an
// envoy.service.status.v3.ClientConfig. It joins streams of one node that ask for
// different types, as the streams of an Envoy and its agent do.
func (p *Pages) clientConfigs(rights Rights) ([]*anypb.Any, error) {
	var configs []*statusv3.ClientConfig
	byID := make(map[string][]*statusv3.ClientConfig)
	for _, x := range p.visible(rights) {
		c := clientConfig(&x)
		same := byID[c.GetNode().GetId()]
		if i := slices.IndexFunc(same, func(o *statusv3.ClientConfig) bool { return joins(o, c) }); i >= 0 {
			same[i].GenericXdsConfigs = append(same[i].GenericXdsConfigs, c.GetGenericXdsConfigs()...)
			continue
		}
		configs = append(configs, c)
		byID[c.GetNode().GetId()] = append(same, c)
	}
	out := make([]*anypb.Any, len(configs))
	for i, c := range configs {
		slices.SortFunc(c.GetGenericXdsConfigs(), func(a, b *statusv3.ClientConfig_GenericXdsConfig) int {
			return cmp.Compare(a.GetTypeUrl(), b.GetTypeUrl())
		})
		a, err := xdswire.Any(c)
		if err != nil {
			return nil, err
		}
		out[i] = a
	}
	return out, nil
}

// joins reports whether two streams are of one node and share no type.
func joins(a, b *statusv3.ClientConfig) bool {
	return proto.Equal(a.GetNode(), b.GetNode()) &&
		!slices.ContainsFunc(a.GetGenericXdsConfigs(), func(x *statusv3.ClientConfig_GenericXdsConfig) bool {
			return slices.ContainsFunc(b.GetGenericXdsConfigs(), func(y *statusv3.ClientConfig_GenericXdsConfig) bool {
				return x.GetTypeUrl() == y.GetTypeUrl()
			})
		})
}

func clientConfig(x *history.Proxy) *statusv3.ClientConfig {
	metadata := map[string]*structpb.Value{}
	for key, value := range map[string]string{
		"CLUSTER_ID": string(x.Node.Cluster), "NAMESPACE": x.Node.Namespace, "ISTIO_VERSION": x.Node.Version,
	} {
		if value != "" {
			metadata[key] = structpb.NewStringValue(value)
		}
	}
	out := &statusv3.ClientConfig{
		Node: &corev3.Node{Id: x.Node.ID.ProxyID(), Metadata: &structpb.Struct{Fields: metadata}},
	}
	for _, typeURL := range xdswire.PushOrder {
		t, ok := x.Types[xdswire.ShortType(typeURL)]
		if !ok {
			continue
		}
		c := &statusv3.ClientConfig_GenericXdsConfig{
			TypeUrl: typeURL, VersionInfo: t.Sent,
			ConfigStatus: statusv3.ConfigStatus(statusv3.ConfigStatus_value[statusName(&t)]),
		}
		if !t.SentAt.IsZero() {
			c.LastUpdated = timestamppb.New(t.SentAt)
		}
		if message := lastError(t); message != "" {
			c.ErrorState = &adminv3.UpdateFailureState{LastUpdateAttempt: c.LastUpdated, Details: message}
		}
		out.GenericXdsConfigs = append(out.GenericXdsConfigs, c)
	}
	return out
}

// Identifier returns the identity of the control plane as the JSON that Istio's tools
// read.
func (p *Pages) Identifier() string {
	b, err := json.Marshal(struct {
		Component, ID string
		Info          any
	}{"istiod", p.cfg.ID, p.cfg.Version})
	if err != nil {
		return ""
	}
	return string(b)
}
