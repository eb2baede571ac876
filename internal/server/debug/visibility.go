package debug

import (
	"context"
	"strconv"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// serviceTarget is a port on which a workload is called, in Istio's fields.
type serviceTarget struct {
	Service service
	Port    struct {
		ServicePort servicePort
		TargetPort  uint32
	}
}

// instancesz makes the page of the services that lead to each proxy, to ?proxyID=, or
// to the proxies of ?namespace=.
func (p *Pages) instancesz(_ context.Context, q Query) (any, error) {
	s, err := p.snapshot()
	if err != nil {
		return nil, err
	}
	proxies := p.visible(q.Rights)
	if q.Get("proxyID") != "" {
		x, err := p.proxy(q)
		if err != nil {
			return nil, err
		}
		proxies = []history.Proxy{*x}
	}
	out := make(map[string][]serviceTarget)
	for i := range proxies {
		n := &proxies[i].Node
		if namespace := q.Get("namespace"); namespace != "" && n.Namespace != namespace {
			continue
		}
		targets := []serviceTarget{}
		for _, t := range inbound.Targets(s, *n) {
			x := serviceTarget{Service: serviceOf(t.Service)}
			x.Port.ServicePort, x.Port.TargetPort = servicePort{t.Port.Name, t.Port.Number, t.Port.Protocol}, t.Number
			targets = append(targets, x)
		}
		if out[n.ID.ProxyID()] = targets; len(out) > maxEntries {
			return nil, tooMany("proxies", "?namespace= or ?proxyID=")
		}
	}
	return out, nil
}

// defaultSidecar is Istio's name for the scope of proxies without a Sidecar.
const defaultSidecar = "default-sidecar"

// sidecarScope holds the services that a proxy may reach, in Istio's fields.
type sidecarScope struct {
	Version               string                `json:"version"` // of the snapshot
	RootNamespace         string                `json:"rootNamespace"`
	Name                  string                `json:"name"`
	Namespace             string                `json:"namespace"`
	OutboundTrafficPolicy outboundTrafficPolicy `json:"outboundTrafficPolicy"`
	Services              []service             `json:"services"`
	Sidecar               any                   `json:"sidecar"`
	// DestinationRules holds the rules that apply to the proxy, merged, by host.
	DestinationRules map[string]scopedRule `json:"destinationRules"`
}

// scopedRule is a DestinationRule, which the first one of a merge names.
type scopedRule struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Rule      any    `json:"rule"`
}

// sidecarz makes the page of the services that ?proxyID= may reach, with their
// DestinationRules, and of the Sidecar that decides it.
func (p *Pages) sidecarz(_ context.Context, q Query) (any, error) {
	s, err := p.snapshot()
	if err != nil {
		return nil, err
	}
	x, err := p.proxy(q)
	if err != nil {
		return nil, err
	}
	sight := proxy.VisibilityOf(s, x.Node)
	out := sidecarScope{
		Version: strconv.FormatUint(s.Seq, 10), RootNamespace: s.Mesh.RootNamespace, Name: defaultSidecar, Namespace: x.Node.Namespace,
		OutboundTrafficPolicy: meshPolicy(s), Services: []service{}, DestinationRules: make(map[string]scopedRule),
	}
	rules := xdsgen.RulesOf(s, x.Node)
	if c := sight.Sidecar; c != nil {
		out.Name, out.Namespace, out.Sidecar = c.Name, c.Namespace, c.Spec
		if policy := c.Spec.GetOutboundTrafficPolicy(); policy != nil {
			out.OutboundTrafficPolicy.Mode = policy.GetMode().String()
		}
	}
	for _, svc := range s.Services.All() {
		if sight.Sees(svc) {
			out.Services = append(out.Services, serviceOf(svc))
			if r := rules(svc); r != nil {
				out.DestinationRules[svc.Host] = scopedRule{r.Name, r.Namespace, &networkingv1alpha3.DestinationRule{
					Host: svc.Host, TrafficPolicy: r.Policy, Subsets: r.Subsets,
				}}
			}
		}
	}
	return out, nil
}

// outboundTrafficPolicy decides about traffic to unknown hosts.
type outboundTrafficPolicy struct {
	Mode string `json:"mode"`
}

func meshPolicy(s *snapshot.Snapshot) outboundTrafficPolicy {
	if s.Mesh.RegistryOnly {
		return outboundTrafficPolicy{"REGISTRY_ONLY"}
	}
	return outboundTrafficPolicy{"ALLOW_ANY"}
}
