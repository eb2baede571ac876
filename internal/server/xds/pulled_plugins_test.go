package xds

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// plugins sets WasmPlugins of namespaces whose modules need the Secret "pull".
func (w registryMesh) plugins(namespaces ...string) {
	next := *w.s
	for _, ns := range namespaces {
		p := &snapshot.WasmPlugin{
			Meta: snapshot.Meta{Namespace: ns, Name: "p"}, Kind: snapshot.KindWasmPlugin,
			Spec: &extensionsv1alpha1.WasmPlugin{Url: "oci://registry.example/p:v1", ImagePullSecret: "pull"},
		}
		next.Namespaces = next.Namespaces.With(map[string]*snapshot.NamespaceFacts{
			ns: {Policies: map[snapshot.Kind][]snapshot.Policy{snapshot.KindWasmPlugin: {p}}},
		})
	}
	w.s = &next
}

// pull sets a Secret with credentials.
func (w registryMesh) pull(c mesh.ClusterID, ns, credentials string) {
	key := snapshot.SecretKey(c, ns, "pull")
	next := *w.s
	next.Secrets = next.Secrets.With(map[string]*snapshot.Secret{key: {
		Meta: snapshot.Meta{Cluster: c, Namespace: ns, Name: "pull"},
		Pull: &snapshot.PullCredentials{Config: snapshot.NewPrivateKey([]byte(credentials))},
	}})
	w.s = &next
	w.changes.Secrets = map[string]struct{}{key: {}}
}

// askPlugin opens a stream of a proxy behind a relay that requests a plugin.
func (b *testServer) askPlugin(v xdswire.Variant, caller, nodeID, plugin string) *secretClient {
	b.t.Helper()
	a := &secretClient{client: b.connectOn(b.dial(grpc.WithUserAgent(caller)), v, "x"), typ: "ECDS", got: make(chan map[string][]byte, 100)}
	a.node = &corev3.Node{Id: nodeID, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{mesh.MetadataRelay: structpb.NewStringValue("true")}}}
	go a.follow()
	a.subscribe("ECDS", mesh.PluginPrefix+plugin)
	return a
}

// credentials waits for a plugin and returns the credentials in it.
func (a *secretClient) credentials() string {
	a.t.Helper()
	got := a.next()
	for len(got) == 0 { // the right is not known yet
		got = a.next()
	}
	for name, value := range got {
		extension, filter := &corev3.TypedExtensionConfig{}, &httpwasmv3.Wasm{}
		if proto.Unmarshal(value, extension) != nil || extension.GetTypedConfig().UnmarshalTo(filter) != nil || filter.GetConfig().GetVmConfig().GetCode().GetRemote() == nil {
			a.t.Fatalf("%s is no plugin: %v", name, extension)
		}
		return filter.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()[mesh.WasmPullSecret]
	}
	return ""
}

// TestPullCredentials: only workloads of the plugin's namespace that may read its Secrets get the
// credentials in the Secret of their own cluster, and their changes. The others get the plugin
// without them, and the log has the reason.
func TestPullCredentials(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		w.s.Mesh = &snapshot.Mesh{LocalCluster: "c1", RootNamespace: "root"}
		w.plugins("ns", "root")
		w.pull("c1", "ns", "secret c1")
		w.pull("c2", "ns", "secret c2")
		w.pull("c1", "root", "secret root")
		b := startServer(t, w.testMesh, realGenerator)
		for _, tc := range []struct{ caller, node, plugin, want, reason string }{
			{"ns/gw@c1", gateway, "ns.p", "secret c1", ""},
			{"ns/gw@c2", gateway, "ns.p", "secret c2", ""},
			{"ns/gw@c3", gateway, "ns.p", "", "secret ns/pull of cluster c3 not found"},
			{"ns/gw@c1", gateway, "root.p", "", "secret root/pull is in another namespace than the proxy, which is in ns"},
			{"ns/web@c1", "sidecar~10.0.0.1~web.ns~ns.svc.cluster.local", "ns.p", "", "it is not a gateway"},
		} {
			if got := b.askPlugin(v, tc.caller, tc.node, tc.plugin).credentials(); got != tc.want {
				t.Errorf("%s is given %q with %s, want %q", tc.caller, got, tc.plugin, tc.want)
			}
			b.eventually(tc.reason, func() bool { return strings.Contains(b.logs.String(), tc.reason) })
		}
		a := b.askPlugin(v, "ns/other@c1", gateway, "ns.p")
		if got := a.credentials(); got != "secret c1" {
			t.Fatalf("given %q", got)
		}
		w.pull("c1", "ns", "newer secret")
		b.push()
		if got := a.credentials(); got != "newer secret" {
			t.Errorf("given %q", got)
		}
		if strings.Contains(b.logs.String(), "secret c1") {
			t.Error("the log shows credentials")
		}
	})
}

// TestPullCredentialsWithoutIdentity: a caller who did not authenticate gets no credentials.
func TestPullCredentialsWithoutIdentity(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		w.plugins("ns")
		w.pull("c1", "ns", "secret")
		w.pull("", "", "secret")
		b := startServer(t, w.testMesh, plaintext)
		if got := b.askPlugin(v, "ns/gw@c1", gateway, "ns.p").credentials(); got != "" {
			t.Errorf("given %q", got)
		}
	})
}

// TestPullRightIsDecided: a plugin waits until the right to its credentials is known. Once the
// right has ended, new credentials do not arrive.
func TestPullRightIsDecided(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		w.plugins("ns")
		w.pull("c1", "ns", "first")
		var answer atomic.Pointer[error]
		set := func(err error) { answer.Store(&err) }
		asked := make(chan struct{}, 100)
		set(units.ErrUndecided)
		b := startServer(t, w.testMesh, realGenerator, func(c *Config, _ *Access) {
			c.MayReadKeys = func(*snapshot.Snapshot, mesh.Caller, proxy.Node) error {
				asked <- struct{}{}
				return *answer.Load()
			}
		})
		pod := snapshot.PodKey{Namespace: "ns", Name: "gw"}.String()
		a := b.askPlugin(v, "ns/gw@c1", gateway, "ns.p")
		<-asked
		set(nil)
		b.hub.Reconsider([]string{pod})
		if got := a.credentials(); got != "first" {
			t.Fatalf("given %q", got)
		}
		set(errors.New("it may not"))
		w.pull("c1", "ns", "second")
		w.changes.Pods = map[string]struct{}{pod: {}}
		b.push()
		if got := a.credentials(); got != "" {
			t.Errorf("given %q", got)
		}
	})
}
