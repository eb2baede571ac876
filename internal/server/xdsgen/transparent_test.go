package xdsgen_test

import (
	"net/netip"
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestTransparent: with interception mode TPROXY the inbound listener is transparent, and Envoy calls
// the application from the address of the client. No other listener changes.
func TestTransparent(t *testing.T) {
	s := build(t, []mesh.ClusterID{"cluster1"}, decodeObjects(t, "cluster1", "inline", []byte(familyObjects)))
	ip := netip.MustParseAddr("10.0.0.1")
	for _, transparent := range []bool{false, true} {
		n := proxy.Node{
			ID:      mesh.NodeID{Type: mesh.Sidecar, IP: ip, Name: "web", Namespace: "shop"},
			Cluster: "cluster1", Namespace: "shop", Labels: map[string]string{"app": "web"}, IPs: []netip.Addr{ip},
			Captured: true, Transparent: transparent,
		}
		found := false
		for _, r := range generate(t, s, n)[xdswire.ListenerType] {
			l := new(listenerv3.Listener)
			decode(t, r, l)
			inbound := r.Name == "virtualInbound"
			found = found || inbound
			if l.GetTransparent().GetValue() != (inbound && transparent) {
				t.Errorf("%s, transparent %v: %v", r.Name, transparent, l.GetTransparent())
			}
			at := slices.IndexFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool { return f.GetName() == "envoy.filters.listener.original_src" })
			if (at >= 0) != (inbound && transparent) {
				t.Errorf("%s, transparent %v: filters %v", r.Name, transparent, l.GetListenerFilters())
			}
			if at < 0 {
				continue
			}
			filter := new(originalsrcv3.OriginalSrc)
			if err := l.GetListenerFilters()[at].GetTypedConfig().UnmarshalTo(filter); err != nil || filter.GetMark() != mesh.MarkTransparent {
				t.Errorf("%v, %v", filter, err)
			}
		}
		if !found {
			t.Error("there is no virtualInbound")
		}
	}
}
