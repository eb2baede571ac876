package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// istioctl requests a status page as Istio's tool does: with a node id that no proxy has, a
// nonce in the first request, and no ACK.
func istioctl(t *testing.T, s *Server, secure bool, token, typeURL string, names ...string) (*discoveryv3.DiscoveryResponse, error) {
	t.Helper()
	addr, creds := s.plain.Addr().String(), insecure.NewCredentials()
	if secure {
		cfg := clientTLS(t, s)
		cfg.Certificates = nil
		addr, creds = s.secure.Addr().String(), credentials.NewTLS(cfg)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	_ = stream.Send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "debug~0.0.0.0~istioctl~cluster.local"}, TypeUrl: typeURL, ResourceNames: names,
		ResponseNonce: time.Now().String(),
	}) // its error comes from Recv
	r, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	// An ACK is not answered, another request is.
	for _, nonce := range []string{r.GetNonce(), "another"} {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names, ResponseNonce: nonce}); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := stream.Recv(); err != nil || again.GetNonce() == r.GetNonce() || len(again.GetResources()) != len(r.GetResources()) {
		t.Errorf("asked again: %v, %v", again, err)
	}
	return r, nil
}

// TestDebugTypesByIdentity: the answers to debug types over xDS, by caller.
func TestDebugTypesByIdentity(t *testing.T) {
	trust, mint := issuing(t)
	s := start(t, func(c *Config) {
		trust(c)
		write(t, c.ConfigDir, "a.yaml", serviceYAML(1))
		c.DebugNamespaces, c.Name = []string{"observers"}, "istiod-0"
	})
	connect(t, s, "web").subscribeAll(t) // of namespace apps
	const page, syncz, dump = "istio.io/debug", "istio.io/debug/syncz", "istio.io/debug/config_dump"
	system, own, other := mint("istio-system", time.Hour), mint("apps", time.Hour), mint("shop", time.Hour)
	for _, tc := range []struct {
		name, token string
		plain       bool
		typ         string
		names       []string
		code        codes.Code
		want        int // resources
		text        string
	}{
		{"plaintext", "", true, syncz, nil, codes.Unauthenticated, 0, "authentication required"},
		{"plaintext with a token", system, true, page, []string{"syncz"}, codes.Unauthenticated, 0, ""},
		{"nobody", "", false, syncz, nil, codes.Unauthenticated, 0, ""},
		{"system, syncz", system, false, syncz, nil, codes.OK, 1, ""},
		{"system, config_dump", system, false, dump, []string{"web.apps"}, codes.OK, 7, ""},
		{"system, config_dump of nobody", system, false, dump, []string{"nobody.apps"}, codes.OK, 0, ""},
		{"system, config_dump of two", system, false, dump, []string{"web.apps", "b.apps"}, codes.InvalidArgument, 0, "exactly one"},
		{"system, page", system, false, page, []string{"syncz"}, codes.OK, 1, `"proxy":"web.apps"`},
		{"system, page with a query", system, false, page, []string{"edsz?proxyID=web.apps"}, codes.OK, 1, `"clusterName"`},
		{"system, list", system, false, page, []string{"list"}, codes.OK, 1, `"config_dump"`},
		{"system, no page", system, false, page, nil, codes.InvalidArgument, 0, "exactly one"},
		{"system, unknown page", system, false, page, []string{"nothing"}, codes.OK, 1, "404 page not found"},
		{"system, no proxyID", system, false, page, []string{"config_dump"}, codes.OK, 1, "You must provide a proxyID"},
		{"system, proxy of nobody", system, false, page, []string{"config_dump?proxyID=nobody"}, codes.OK, 1, "Proxy not connected"},
		{"system, unknown type", system, false, "istio.io/debug/nothing", nil, codes.InvalidArgument, 0, ""},
		{"allowed, syncz", mint("observers", time.Hour), false, syncz, nil, codes.OK, 1, ""},
		{"own, syncz", own, false, syncz, nil, codes.OK, 1, ""},
		{"own, config_dump", own, false, dump, []string{"web.apps"}, codes.OK, 7, ""},
		{"own, page of its proxy", own, false, page, []string{"config_dump?proxyID=web.apps"}, codes.OK, 1, "dynamicActiveClusters"},
		{"own, proxy of another replica", own, false, page, []string{"config_dump?proxyID=web-2.apps"}, codes.OK, 1, "Proxy not connected"},
		{"own, page of all", own, false, page, []string{"syncz"}, codes.PermissionDenied, 0, "not available for current identity"},
		{"other, syncz", other, false, syncz, nil, codes.OK, 0, ""},
		{"other, config_dump", other, false, dump, []string{"web.apps"}, codes.PermissionDenied, 0, ""},
		{"other, config_dump of nobody", other, false, dump, []string{"nobody.apps"}, codes.PermissionDenied, 0, ""},
		{"other, page of a proxy", other, false, page, []string{"config_dump?proxyID=web.apps"}, codes.PermissionDenied, 0, ""},
		{"other, part of a name", other, false, page, []string{"ndsz?proxyID=web"}, codes.PermissionDenied, 0, ""},
		{"other, page of all", other, false, page, []string{"registryz"}, codes.PermissionDenied, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := istioctl(t, s, !tc.plain, tc.token, tc.typ, tc.names...)
			if status.Code(err) != tc.code || tc.code != codes.OK && !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got %v, want %v %q", err, tc.code, tc.text)
			}
			if err != nil {
				return
			}
			if len(r.GetResources()) != tc.want || r.GetTypeUrl() != tc.typ {
				t.Fatalf("%d resources of %s, want %d", len(r.GetResources()), r.GetTypeUrl(), tc.want)
			}
			if tc.text != "" && (r.GetResources()[0].GetTypeUrl() != page || !strings.Contains(string(r.GetResources()[0].GetValue()), tc.text)) {
				t.Errorf("body: %.300s", r.GetResources()[0].GetValue())
			}
			var who struct {
				Component, ID string
				Info          map[string]string
			}
			if err := json.Unmarshal([]byte(r.GetControlPlane().GetIdentifier()), &who); err != nil || who.Component != "istiod" || who.ID != "istiod-0" || who.Info["version"] != "test" {
				t.Errorf("control plane %q: %v", r.GetControlPlane().GetIdentifier(), err)
			}
		})
	}
}

// TestClientConfigs: the contents for Istio's proxy-status.
func TestClientConfigs(t *testing.T) {
	trust, mint := issuing(t)
	s := start(t, func(c *Config) {
		trust(c)
		write(t, c.ConfigDir, "a.yaml", serviceYAML(1))
	})
	connect(t, s, "web").subscribeAll(t)
	var c statusv3.ClientConfig
	waitFor(t, "four accepted types", func() bool {
		r, err := istioctl(t, s, true, mint("istio-system", time.Hour), "istio.io/debug/syncz")
		if err != nil || len(r.GetResources()) != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		c.Reset()
		if err := r.GetResources()[0].UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, x := range c.GetGenericXdsConfigs() {
			if x.GetConfigStatus() == statusv3.ConfigStatus_SYNCED && x.GetLastUpdated().IsValid() {
				n++
			}
		}
		return n == 4
	})
	if md := c.GetNode().GetMetadata().AsMap(); c.GetNode().GetId() != "web.apps" || md["CLUSTER_ID"] != "cluster1" || md["NAMESPACE"] != "apps" || len(md) != 2 {
		t.Errorf("node %v", c.GetNode())
	}
	r, err := istioctl(t, s, true, mint("istio-system", time.Hour), "istio.io/debug/config_dump", "web.apps")
	if err != nil {
		t.Fatal(err)
	}
	var clusters adminv3.ClustersConfigDump
	if err := r.GetResources()[1].UnmarshalTo(&clusters); err != nil || len(clusters.GetDynamicActiveClusters()) == 0 {
		t.Errorf("%d clusters, %v", len(clusters.GetDynamicActiveClusters()), err)
	}
}
