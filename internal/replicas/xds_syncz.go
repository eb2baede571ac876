package replicas

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"

	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// reportOf returns the report in a response to syncz, with one ClientConfig for each
// proxy. Ages are relative to at, the time of the response.
func reportOf(answer *discoveryv3.DiscoveryResponse, at time.Time) (*proxystatus.Report, error) {
	var who struct{ ID string }
	_ = json.Unmarshal([]byte(answer.GetControlPlane().GetIdentifier()), &who) // otherwise the address is the name
	out := &proxystatus.Report{Replica: who.ID, At: at, Proxies: []proxystatus.Proxy{}}
	for i, a := range answer.GetResources() {
		var c statusv3.ClientConfig
		if err := a.UnmarshalTo(&c); err != nil {
			return nil, fmt.Errorf("proxy %d of the answer: %w", i+1, err)
		}
		out.Proxies = append(out.Proxies, proxyOf(&c, at))
	}
	return out, nil
}

func proxyOf(c *statusv3.ClientConfig, at time.Time) proxystatus.Proxy {
	metadata := c.GetNode().GetMetadata().GetFields()
	p := proxystatus.Proxy{
		Name: c.GetNode().GetId(), Namespace: metadata["NAMESPACE"].GetStringValue(),
		Cluster: metadata["CLUSTER_ID"].GetStringValue(), Version: metadata["ISTIO_VERSION"].GetStringValue(),
		Types: []proxystatus.Type{},
	}
	if _, namespace, ok := strings.Cut(p.Name, "."); ok && p.Namespace == "" {
		p.Namespace = namespace
	}
	for _, x := range c.GetGenericXdsConfigs() {
		t := proxystatus.Type{
			Type: proxystatus.ShortType(x.GetTypeUrl()), URL: x.GetTypeUrl(), State: stateOf(x.GetConfigStatus()),
			Sent: x.GetVersionInfo(), Error: x.GetErrorState().GetDetails(),
		}
		if x.GetLastUpdated().IsValid() {
			t.SentAt = x.GetLastUpdated().AsTime()
		}
		if t.State == proxystatus.Stale && !t.SentAt.IsZero() {
			t.Lag = proxystatus.Lag(max(at.Sub(t.SentAt), 0))
		}
		if t.State != "" {
			p.Types = append(p.Types, t)
		}
	}
	if len(c.GetGenericXdsConfigs()) == 0 {
		p.Types = append(p.Types, olderTypes(c)...)
	}
	return p
}

// olderTypes returns the types in a response of an older control plane.
func olderTypes(c *statusv3.ClientConfig) []proxystatus.Type {
	var out []proxystatus.Type
	for _, x := range c.GetXdsConfig() { //nolint:staticcheck // older control planes send it
		var url string
		switch x.GetPerXdsConfig().(type) {
		case *statusv3.PerXdsConfig_ClusterConfig:
			url = xdswire.ClusterType
		case *statusv3.PerXdsConfig_ListenerConfig:
			url = xdswire.ListenerType
		case *statusv3.PerXdsConfig_RouteConfig:
			url = xdswire.RouteType
		case *statusv3.PerXdsConfig_EndpointConfig:
			url = xdswire.EndpointType
		}
		if state := stateOf(x.GetStatus()); url != "" && state != "" {
			out = append(out, proxystatus.Type{Type: xdswire.ShortType(url), URL: url, State: state})
		}
	}
	return out
}

// stateOf returns a state, empty for a type that the proxy did not ask for.
func stateOf(s statusv3.ConfigStatus) proxystatus.State {
	switch s {
	case statusv3.ConfigStatus_NOT_SENT:
		return proxystatus.NotSent
	case statusv3.ConfigStatus_SYNCED:
		return proxystatus.Synced
	case statusv3.ConfigStatus_STALE:
		return proxystatus.Stale
	case statusv3.ConfigStatus_ERROR:
		return proxystatus.Error
	}
	return ""
}
