package debug

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// configDump is a page in the form of Envoy's own dump.
type configDump struct {
	Configs []message `json:"configs"`
}

// message encodes itself as JSON with its type.
type message struct{ *anypb.Any }

// MarshalJSON implements json.Marshaler.
func (m message) MarshalJSON() ([]byte, error) {
	if m.GetTypeUrl() == xdswire.NameTableType {
		return nameTable(m.GetValue())
	}
	return protojson.Marshal(m.Any)
}

// configDump makes the page of the last responses to a proxy, with types= only of
// these types.
func (p *Pages) configDump(_ context.Context, q Query) (any, error) {
	if types := q.Get("types"); types != "" {
		return p.ofTypes(q, strings.Split(types, ",")...)
	}
	x, err := p.proxy(q)
	if err != nil {
		return nil, err
	}
	return ConfigDump(p.cfg.Sent(x.ID), q.Has("include_eds"))
}

// ConfigDump returns the last responses to a proxy, which sent holds by type URL, as JSON in
// the form of Envoy's dump and without private keys.
func ConfigDump(sent map[string]history.SentConfig, endpoints bool) (any, error) {
	configs, err := dump(sent, endpoints)
	if err != nil {
		return nil, err
	}
	out := configDump{Configs: []message{}}
	for _, c := range configs {
		out.Configs = append(out.Configs, message{c})
	}
	return out, nil
}

// ofType returns a page with the resources of one type.
func (p *Pages) ofType(short string) func(context.Context, Query) (any, error) {
	return func(_ context.Context, q Query) (any, error) { return p.ofTypes(q, short) }
}

func (p *Pages) ofTypes(q Query, types ...string) (any, error) {
	x, err := p.proxy(q)
	if err != nil {
		return nil, err
	}
	sent := p.cfg.Sent(x.ID)
	out := configDump{Configs: []message{}}
	for _, t := range types {
		i := slices.IndexFunc(xdswire.PushOrder[:], func(url string) bool {
			return url == t || strings.EqualFold(xdswire.ShortType(url), t)
		})
		if i < 0 {
			return nil, &Error{http.StatusBadRequest, fmt.Sprintf("type %.100q is not known: want cds, eds, lds, rds, vhds, sds, ecds, nds, pcds or bds", t)}
		}
		for _, r := range sent[xdswire.PushOrder[i]].Resources {
			a, err := shown(r)
			if err != nil {
				return nil, err
			}
			out.Configs = append(out.Configs, message{a})
		}
	}
	return out, nil
}

// Resource returns a resource as JSON, without private keys and credentials.
func Resource(r *xdswire.Resource) (any, error) {
	a, err := shown(r)
	return message{a}, err
}

// dump returns the last responses to a proxy, in the messages of Envoy's dump.
func dump(sent map[string]history.SentConfig, endpoints bool) ([]*anypb.Any, error) {
	var failed error
	each := func(url string, add func(version, name string, a *anypb.Any)) {
		for _, r := range sent[url].Resources {
			a, err := shown(r)
			if err != nil {
				failed = err
				return
			}
			add(sent[url].Version, r.Name, a)
		}
	}
	clusters := &adminv3.ClustersConfigDump{VersionInfo: sent[xdswire.ClusterType].Version}
	each(xdswire.ClusterType, func(version, _ string, a *anypb.Any) {
		clusters.DynamicActiveClusters = append(clusters.DynamicActiveClusters, &adminv3.ClustersConfigDump_DynamicCluster{VersionInfo: version, Cluster: a})
	})
	assignments := &adminv3.EndpointsConfigDump{}
	if endpoints {
		each(xdswire.EndpointType, func(version, _ string, a *anypb.Any) {
			assignments.DynamicEndpointConfigs = append(assignments.DynamicEndpointConfigs, &adminv3.EndpointsConfigDump_DynamicEndpointConfig{VersionInfo: version, EndpointConfig: a})
		})
	}
	listeners := &adminv3.ListenersConfigDump{VersionInfo: sent[xdswire.ListenerType].Version}
	each(xdswire.ListenerType, func(version, name string, a *anypb.Any) {
		listeners.DynamicListeners = append(listeners.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
			Name: name, ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{VersionInfo: version, Listener: a},
		})
	})
	routeConfig := &adminv3.RoutesConfigDump{}
	each(xdswire.RouteType, func(version, name string, a *anypb.Any) {
		a, err := withHosts(name, a, sent[xdswire.VirtualHostType].Resources)
		if err != nil {
			failed = err
			return
		}
		routeConfig.DynamicRouteConfigs = append(routeConfig.DynamicRouteConfigs, &adminv3.RoutesConfigDump_DynamicRouteConfig{VersionInfo: version, RouteConfig: a})
	})
	secrets := &adminv3.SecretsConfigDump{}
	each(xdswire.SecretType, func(version, name string, a *anypb.Any) {
		secrets.DynamicActiveSecrets = append(secrets.DynamicActiveSecrets, &adminv3.SecretsConfigDump_DynamicSecret{Name: name, VersionInfo: version, Secret: a})
	})
	extensions := &adminv3.EcdsConfigDump{}
	each(xdswire.ExtensionType, func(version, _ string, a *anypb.Any) {
		extensions.EcdsFilters = append(extensions.EcdsFilters, &adminv3.EcdsConfigDump_EcdsFilterConfig{VersionInfo: version, EcdsFilter: a})
	})
	if failed != nil {
		return nil, failed
	}
	// The order is Istio's. Parts that only Envoy knows are empty.
	parts := []proto.Message{&adminv3.BootstrapConfigDump{}, clusters}
	if endpoints {
		parts = append(parts, assignments)
	}
	parts = append(parts, listeners, &adminv3.ScopedRoutesConfigDump{}, routeConfig, secrets, extensions)
	out := make([]*anypb.Any, len(parts))
	for i, m := range parts {
		var err error
		if out[i], err = xdswire.Any(m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// withHosts adds the virtual hosts that were sent one by one to their route configuration, as
// Envoy's dump does.
func withHosts(name string, routeConfig *anypb.Any, hosts []*xdswire.Resource) (*anypb.Any, error) {
	var more routev3.RouteConfiguration
	for _, r := range hosts {
		if !strings.HasPrefix(r.Name, name+routes.HostSeparator) {
			continue
		}
		a, err := r.Any()
		if err != nil {
			return nil, err
		}
		host := new(routev3.VirtualHost)
		if err := a.UnmarshalTo(host); err != nil {
			return nil, fmt.Errorf("virtual host %s: %w", r.Name, err)
		}
		more.VirtualHosts = append(more.VirtualHosts, host)
	}
	wire, err := xdswire.Marshal(&more)
	if err != nil {
		return nil, err
	}
	// The encoding of a message is the concatenation of its encoded parts.
	return &anypb.Any{TypeUrl: routeConfig.GetTypeUrl(), Value: slices.Concat(routeConfig.GetValue(), wire)}, nil
}

// nameTable returns an encoded name table as JSON.
func nameTable(b []byte) ([]byte, error) {
	table, err := xdswire.NameTable(b)
	if err != nil {
		return nil, err
	}
	return json.Marshal(struct {
		Type  string                      `json:"@type"`
		Table map[string]xdswire.NameInfo `json:"table"`
	}{xdswire.NameTableType, table})
}
