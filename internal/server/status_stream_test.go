package server

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// response is a response of either variant.
type response struct {
	typ, nonce, who string
	resources       []*anypb.Any
}

func (c *wireClient) ask(typ, nonce string, names ...string) {
	c.t.Helper()
	var err error
	if c.delta != nil {
		err = c.delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: nonce, ResourceNamesSubscribe: names})
	} else {
		err = c.sotw.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typ, ResponseNonce: nonce, ResourceNames: names})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *wireClient) hear() (response, error) {
	if c.delta == nil {
		m, err := c.sotw.Recv()
		return response{m.GetTypeUrl(), m.GetNonce(), m.GetControlPlane().GetIdentifier(), m.GetResources()}, err
	}
	m, err := c.delta.Recv()
	out := response{typ: m.GetTypeUrl(), nonce: m.GetNonce(), who: m.GetControlPlane().GetIdentifier()}
	for _, r := range m.GetResources() {
		out.resources = append(out.resources, r.GetResource())
	}
	return out, err
}

// TestStatusPagesOnAStreamOfConfiguration: requests for status pages on the stream of a
// proxy, as agents forward them, are answered at once and subscribe to nothing.
func TestStatusPagesOnAStreamOfConfiguration(t *testing.T) {
	const page, syncz = xdswire.DebugType, xdswire.DebugType + "/syncz"
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		t.Run(v.String(), func(t *testing.T) {
			dir := ""
			s := start(t, func(c *Config) {
				dir = c.ConfigDir
				write(t, dir, "a.yaml", serviceYAML(1))
			})
			c := dialWire(t, s, true, v, "sidecar", xdswire.ClusterType)
			c.next()
			for typ, name := range map[string]string{page: "config_dump?proxyID=web.apps", syncz: ""} {
				names := []string{name}
				if name == "" {
					names = nil
				}
				c.ask(typ, "", names...)
				r, err := c.hear()
				if err != nil || r.typ != typ || len(r.resources) != 1 || !strings.Contains(r.who, `"Component":"istiod"`) {
					t.Fatalf("%s: %+v, %v", typ, r, err)
				}
				if body := string(r.resources[0].GetValue()); !strings.Contains(body, "web") && !strings.Contains(body, "dynamicActiveClusters") {
					t.Errorf("%s: %.300s", typ, body)
				}
				c.ask(typ, r.nonce, names...) // an ACK
			}
			write(t, dir, "b.yaml", serviceYAML(2))
			if r, err := c.hear(); err != nil || r.typ != xdswire.ClusterType || r.who != "" {
				t.Fatalf("after a change: %+v, %v", r, err)
			}
			c.ask(page, "", "registryz")
			if r, err := c.hear(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not available for current identity") {
				t.Errorf("a page of the whole mesh: %+v, %v", r, err)
			}

			plain := dialWire(t, s, false, v, "sidecar", xdswire.ClusterType)
			plain.next()
			plain.ask(syncz, "")
			if r, err := plain.hear(); status.Code(err) != codes.Unauthenticated {
				t.Errorf("without TLS: %+v, %v", r, err)
			}
		})
	}
}
