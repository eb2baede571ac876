package xdsgen_test

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// managersOf returns the listeners and connection managers of a proxy with the metadata.
func managersOf(t *testing.T, id string, metadata map[string]any) ([]*listenerv3.Listener, []*hcmv3.HttpConnectionManager) {
	t.Helper()
	md, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	n, err := proxy.ParseNode(&corev3.Node{Id: id, Metadata: md}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s := build(t, []mesh.ClusterID{"cluster1"}, decodeObjects(t, "cluster1", "all.yaml", []byte(nodeSettingsMesh)))
	var listeners []*listenerv3.Listener
	var managers []*hcmv3.HttpConnectionManager
	for _, m := range checkRules(t, generate(t, s, n)[xdswire.ListenerType]) {
		l, ok := m.(*listenerv3.Listener)
		if !ok {
			t.Fatalf("%T is no listener", m)
		}
		listeners = append(listeners, l)
		for _, c := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
			for _, f := range c.GetFilters() {
				h := &hcmv3.HttpConnectionManager{}
				if f.GetTypedConfig().MessageIs(h) {
					if err := f.GetTypedConfig().UnmarshalTo(h); err != nil {
						t.Fatal(err)
					}
					managers = append(managers, h)
				}
			}
		}
	}
	if len(managers) < 1 {
		t.Fatal("there is no connection manager")
	}
	return listeners, managers
}

const nodeSettingsMesh = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80}, {name: any, port: 90}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, image: web, ports: [{containerPort: 80}, {containerPort: 90}]}]}
status: {podIP: 10.0.0.7, podIPs: [{ip: 10.0.0.7}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {app: edge}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
`

// TestMetadataOfConnectionManagers: HTTP10, IDLE_TIMEOUT and the tracing of PROXY_CONFIG apply to
// each connection manager of sidecars and gateways.
func TestMetadataOfConnectionManagers(t *testing.T) {
	t.Parallel()
	for id, app := range map[string]string{
		"sidecar~10.0.0.7~web.shop~shop.svc.cluster.local": "web", "router~10.0.0.8~edge.shop~shop.svc.cluster.local": "edge",
	} {
		metadata := map[string]any{
			"NAMESPACE": "shop", "CLUSTER_ID": "cluster1", "LABELS": map[string]any{"app": app},
			"HTTP10": "1", "IDLE_TIMEOUT": "90s",
			"PROXY_CONFIG": map[string]any{"tracing": map[string]any{
				"sampling": 37, "maxPathTagLength": 50, "customTags": map[string]any{"team": map[string]any{"literal": map[string]any{"value": "a"}}, "none": map[string]any{}},
			}},
		}
		listeners, managers := managersOf(t, id, metadata)
		for _, h := range managers {
			if !h.GetHttpProtocolOptions().GetAcceptHttp_10() || h.GetCommonHttpProtocolOptions().GetIdleTimeout().GetSeconds() != 90 {
				t.Errorf("%s %s: %v, %v", app, h.GetStatPrefix(), h.GetHttpProtocolOptions(), h.GetCommonHttpProtocolOptions())
			}
			tracing := h.GetTracing()
			if tracing.GetRandomSampling().GetValue() != 37 || tracing.GetMaxPathTagLength().GetValue() != 50 || len(tracing.GetCustomTags()) != 1 {
				t.Errorf("%s %s: tracing %v", app, h.GetStatPrefix(), tracing)
			}
		}
		for _, l := range listeners {
			for _, c := range l.GetFilterChains() {
				alpn := c.GetFilterChainMatch().GetApplicationProtocols()
				if slices.Contains(alpn, "http/1.1") && !slices.Contains(alpn, "http/1.0") {
					t.Errorf("%s %s: HTTP/1.0 is not detected: %v", app, l.GetName(), alpn)
				}
			}
		}
		for _, key := range []string{"HTTP10", "IDLE_TIMEOUT", "PROXY_CONFIG"} {
			delete(metadata, key)
		}
		_, managers = managersOf(t, id, metadata)
		for _, h := range managers {
			if h.GetHttpProtocolOptions().GetAcceptHttp_10() || h.GetCommonHttpProtocolOptions() != nil || h.GetTracing().GetRandomSampling().GetValue() == 37 {
				t.Errorf("%s %s has settings without metadata", app, h.GetStatPrefix())
			}
		}
	}
	for _, wrong := range []string{"soon", "-1s", "5"} {
		_, err := proxy.ParseNode(&corev3.Node{
			Id: "sidecar~10.0.0.7~web.shop~shop.svc.cluster.local", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"IDLE_TIMEOUT": structpb.NewStringValue(wrong)}},
		}, 1<<20)
		if err == nil || !strings.Contains(err.Error(), "IDLE_TIMEOUT") {
			t.Errorf("IDLE_TIMEOUT %q: %v", wrong, err)
		}
	}
}
