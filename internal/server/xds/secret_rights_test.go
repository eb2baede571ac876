package xds

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// registryMesh is a mesh of real facts: secrets and services.
type registryMesh struct{ *testMesh }

func newRegistryMesh() registryMesh {
	w := newTestMesh()
	w.s.Mesh = &snapshot.Mesh{LocalCluster: "c1"}
	w.s.Gateways = &snapshot.Gateways{}
	return registryMesh{w}
}

// keyMark is contained in every private key.
const keyMark = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG"

// secret sets a secret to a key pair and CAs with a version; version 0 removes it.
func (w registryMesh) secret(c mesh.ClusterID, ns, name string, version int) {
	var s *snapshot.Secret
	if version > 0 {
		id := fmt.Sprintf("%s/%s/%s %d", c, ns, name, version)
		s = &snapshot.Secret{
			Meta: snapshot.Meta{Cluster: c, Namespace: ns, Name: name},
			Pair: &snapshot.KeyPair{Chain: []byte("chain " + id), Key: snapshot.NewPrivateKey([]byte(keyMark + id))},
			CA:   &snapshot.CABundle{Roots: []byte("roots " + id)},
		}
		end := time.Unix(1_800_000_000, 0)
		s.Pair.NotAfter, s.CA.NotAfter = end, end
	}
	key := snapshot.SecretKey(c, ns, name)
	next := *w.s
	next.Secrets = next.Secrets.With(map[string]*snapshot.Secret{key: s})
	w.s = &next
	if w.changes.Secrets == nil {
		w.changes.Secrets = make(map[string]struct{})
	}
	w.changes.Secrets[key] = struct{}{}
}

// service sets the address of a service in the namespace ns; no address removes it.
func (w registryMesh) service(name, vip string) {
	host := mesh.ServiceHost(name, "ns", mesh.DefaultDomain)
	var svc *snapshot.MeshService
	if vip != "" {
		svc = &snapshot.MeshService{
			Host: host, Name: name, Namespace: "ns",
			Clusters: []snapshot.ClusterService{{Cluster: "c1", VIPs: []netip.Addr{netip.MustParseAddr(vip)}}},
		}
	}
	next := *w.s
	next.Services = next.Services.With(map[string]*snapshot.MeshService{host: svc})
	w.s = &next
	if w.changes.Services == nil {
		w.changes.Services = make(map[string]struct{})
	}
	w.changes.Services[host] = struct{}{}
}

// next waits for the next response.
func (a *secretClient) next() map[string][]byte {
	a.t.Helper()
	select {
	case got := <-a.got:
		return got
	case <-time.After(patience):
		a.t.Fatal("no response came")
		return nil
	}
}

// realGenerator makes the hub generate as the control plane does. The user agent names
// the caller: <namespace>/<service account>@<cluster>. Routers may read keys.
func realGenerator(cfg *Config, a *Access) {
	cfg.Generator = Generator{
		ParseNode: proxy.ParseNode, Assign: xdsgen.Assign, AssignReads: xdsgen.AssignReads, Concerned: xdsgen.Concerned,
		Fallback: xdsgen.Fallback, Secrets: units.AssignSecrets,
	}
	cfg.MayReadKeys = func(_ *snapshot.Snapshot, _ mesh.Caller, n proxy.Node) error {
		if n.ID.Type != mesh.Router {
			return errors.New("it is not a gateway")
		}
		return nil
	}
	a.Authenticate = func(ctx context.Context) (mesh.Caller, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		who, _, _ := strings.Cut(md.Get("user-agent")[0], " ")
		account, cluster, _ := strings.Cut(who, "@")
		ns, sa, _ := strings.Cut(account, "/")
		id := mesh.Identity{TrustDomain: "td", Namespace: ns, ServiceAccount: sa}
		return mesh.Caller{Identity: id, Cluster: mesh.ClusterID(cluster)}, admission.Authenticated(ctx, id)
	}
}

func plaintext(cfg *Config, a *Access) {
	realGenerator(cfg, a)
	a.Authenticate = nil
}

// secretClient is a proxy that subscribes to one type and passes on the responses.
type secretClient struct {
	*client
	typ   string
	got   chan map[string][]byte // resources by name
	nonce atomic.Value           // of the last response
}

// ask opens a stream of the caller for one type.
func (b *testServer) ask(v xdswire.Variant, caller, nodeID, typ string, names ...string) *secretClient {
	b.t.Helper()
	a := &secretClient{client: b.connectOn(b.dial(grpc.WithUserAgent(caller)), v, "x"), typ: typ, got: make(chan map[string][]byte, 100)}
	a.node = &corev3.Node{Id: nodeID}
	go a.follow()
	a.subscribe(typ, names...)
	return a
}

// follow acknowledges all responses.
func (a *secretClient) follow() {
	for {
		got := make(map[string][]byte)
		var nonce string
		var removed []string
		if a.variant == xdswire.Delta {
			m, err := a.delta.Recv()
			if err != nil {
				return
			}
			for _, r := range m.GetResources() {
				got[r.GetName()] = r.GetResource().GetValue()
			}
			nonce, removed = m.GetNonce(), m.GetRemovedResources()
			if a.delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: nonce}) != nil {
				return
			}
		} else {
			m, err := a.sotw.Recv()
			if err != nil {
				return
			}
			for _, r := range m.GetResources() {
				var s tlsv3.Secret
				if a.typ == "SDS" && proto.Unmarshal(r.GetValue(), &s) != nil {
					return
				}
				got[s.GetName()] = r.GetValue()
			}
			nonce = m.GetNonce()
		}
		for _, name := range removed {
			got["removed "+name] = nil
		}
		a.nonce.Store(nonce)
		a.got <- got
		if a.variant == xdswire.SotW && a.sotw.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: urlOf(a.typ), ResponseNonce: nonce, ResourceNames: a.names[a.typ],
		}) != nil {
			return
		}
	}
}

// secrets returns the next response by name: chain and key, or roots.
func (a *secretClient) secrets() map[string]string {
	a.t.Helper()
	out := make(map[string]string)
	for name, value := range a.next() {
		var s tlsv3.Secret
		if err := proto.Unmarshal(value, &s); err != nil {
			a.t.Fatal(err)
		}
		out[name] = string(s.GetTlsCertificate().GetCertificateChain().GetInlineBytes()) +
			strings.ReplaceAll(string(s.GetTlsCertificate().GetPrivateKey().GetInlineBytes()), keyMark, ", key ") +
			string(s.GetValidationContext().GetTrustedCa().GetInlineBytes())
	}
	return out
}

func (a *secretClient) want(want map[string]string) {
	a.t.Helper()
	if got := a.secrets(); !maps.Equal(got, want) {
		a.t.Errorf("given %v, want %v", got, want)
	}
}

const (
	gateway = "router~10.0.0.1~gw.ns~ns.svc.cluster.local"
	pairOf  = "chain %[1]s, key %[1]s"
)

// TestSecretsByIdentity: The secrets of a stream depend on the caller's identity,
// whatever the node claims. One warning names the secrets that are not sent; the others
// are.
func TestSecretsByIdentity(t *testing.T) {
	const good, ca, foreign, missing = "kubernetes://s", "kubernetes://s-cacert", "kubernetes://other/s", "kubernetes://none"
	for _, tc := range []struct {
		name, caller, node string
		options            serverOption
		want               map[string]string
		bad                float64
		warning            string
	}{
		{
			"gateway", "ns/gw@c1", gateway, realGenerator,
			map[string]string{good: fmt.Sprintf(pairOf, "c1/ns/s 1"), ca: "roots c1/ns/s 1"},
			2,
			`\"kubernetes://none\" secret ns/none not found; \"kubernetes://other/s\" is in another namespace than the proxy, which is in ns`,
		},
		{
			"of another cluster", "ns/gw@c2", gateway, realGenerator,
			map[string]string{good: fmt.Sprintf(pairOf, "c2/ns/s 1"), ca: "roots c2/ns/s 1"},
			2, "is in another namespace",
		},
		{
			"says another namespace", "other/gw@c1", gateway, realGenerator,
			map[string]string{good: fmt.Sprintf(pairOf, "c1/other/s 1"), ca: "roots c1/other/s 1", foreign: fmt.Sprintf(pairOf, "c1/other/s 1")},
			1,
			"secret other/none not found",
		},
		{
			"sidecar", "ns/web@c1", "sidecar~10.0.0.1~web.ns~ns.svc.cluster.local", realGenerator,
			map[string]string{ca: "roots c1/ns/s 1"},
			3, "the proxy is not authorized to read secrets: it is not a gateway",
		},
		{"of no proved cluster", "ns/gw", gateway, realGenerator, nil, 4, "secrets are served only over TLS"},
		{"of an unknown cluster", "ns/gw@c9", gateway, realGenerator, nil, 4, "secret ns/s not found"},
		{"plaintext", "ns/gw@c1", gateway, plaintext, nil, 4, "secrets are served only over TLS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			both(t, func(t *testing.T, v xdswire.Variant) {
				w := newRegistryMesh()
				for _, c := range []mesh.ClusterID{"c1", "c2"} {
					w.secret(c, "ns", "s", 1)
				}
				w.secret("c1", "other", "s", 1)
				b := startServer(t, w.testMesh, tc.options)
				a := b.ask(v, tc.caller, tc.node, "SDS", good, ca, foreign, missing, "*")
				if tc.want != nil {
					a.want(tc.want)
				}
				b.eventually("warning", func() bool { return strings.Contains(b.logs.String(), tc.warning) })
				// The wildcard does not name a secret either.
				if bad := b.metric("meshctl_xds_bad_secrets_total", ""); bad != tc.bad {
					t.Errorf("%v bad secrets counted, want %v", bad, tc.bad)
				}
				if n := strings.Count(b.logs.String(), "level=WARN"); n != 1 {
					t.Errorf("%d warnings:\n%s", n, b.logs)
				}
				// A change without effect on the subscription is not sent; later
				// responses show that.
				w.secret("c1", "ns", "unrelated", 1)
				b.push()
				w.secret("c1", "ns", "s", 2)
				w.secret("c2", "ns", "s", 2)
				w.secret("c1", "other", "s", 2)
				b.push()
				if tc.want != nil {
					for name, content := range tc.want {
						tc.want[name] = strings.ReplaceAll(content, " 1", " 2")
					}
					a.want(tc.want)
					for name, content := range tc.want {
						tc.want[name] = strings.ReplaceAll(content, " 2", " 1")
					}
				}
				sent := 2.0
				if tc.want == nil {
					sent = 0
				}
				if n := b.metric("meshctl_xds_sent_total", "SDS"); n != sent {
					t.Errorf("%v responses sent, want %v", n, sent)
				}
				if strings.Contains(b.logs.String(), keyMark[30:]) {
					t.Errorf("a key is in the log:\n%s", b.logs)
				}
			})
		})
	}
}

// TestSecretChangeReachesSubscribers: A change reaches subscribers only. Two gateways
// with equal subscriptions share the bytes.
func TestSecretChangeReachesSubscribers(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		for _, name := range []string{"a", "b"} {
			w.secret("c1", "ns", name, 1)
			w.secret("c1", "other", name, 1)
		}
		b := startServer(t, w.testMesh, realGenerator)
		one := b.ask(v, "ns/gw@c1", gateway, "SDS", "kubernetes://a")
		one.secrets()
		two := b.ask(v, "ns/twin@c1", gateway, "SDS", "kubernetes://a")
		two.secrets()
		if n := b.metric("meshctl_xds_encoded_total", "SDS"); n != 1 {
			t.Errorf("%v secrets encoded for two gateways that want the same, want 1", n)
		}
		roots := b.ask(v, "ns/web@c1", gateway, "SDS", "kubernetes://ns/a-cacert")
		roots.secrets()
		for _, other := range []*secretClient{
			b.ask(v, "ns/gw@c1", gateway, "SDS", "kubernetes://b"),
			b.ask(v, "other/gw@c1", strings.ReplaceAll(gateway, "ns", "other"), "SDS", "kubernetes://a"),
		} {
			other.secrets()
		}
		before := b.metric("meshctl_xds_sent_total", "SDS")
		w.secret("c1", "ns", "a", 2)
		b.push()
		want := map[string]string{"kubernetes://a": fmt.Sprintf(pairOf, "c1/ns/a 2")}
		one.want(want)
		two.want(want)
		roots.want(map[string]string{"kubernetes://ns/a-cacert": "roots c1/ns/a 2"})
		if n := b.metric("meshctl_xds_sent_total", "SDS") - before; n != 3 {
			t.Errorf("%v responses sent, want 3", n)
		}
		// A secret with the name precedes the CAs in the other one.
		w.secret("c1", "ns", "a-cacert", 1)
		b.push()
		roots.want(map[string]string{"kubernetes://ns/a-cacert": "roots c1/ns/a-cacert 1"})
		w.secret("c1", "ns", "a-cacert", 0)
		b.push()
		roots.want(map[string]string{"kubernetes://ns/a-cacert": "roots c1/ns/a 2"})
		if n := b.metric("meshctl_xds_sent_total", "SDS") - before; n != 5 {
			t.Errorf("%v responses sent, want 5", n)
		}
	})
}

// TestSecretsComeAndGo: Nothing is sent while a secret is missing, and a deleted one is
// not removed from the proxy.
func TestSecretsComeAndGo(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		b := startServer(t, w.testMesh, realGenerator)
		a := b.ask(v, "ns/gw@c1", gateway, "SDS", "kubernetes://a")
		b.eventually("warning", func() bool { return strings.Contains(b.logs.String(), "secret ns/a not found") })
		w.secret("c1", "ns", "a", 1)
		b.push()
		a.want(map[string]string{"kubernetes://a": fmt.Sprintf(pairOf, "c1/ns/a 1")})
		w.secret("c1", "ns", "a", 0)
		b.push()
		w.secret("c1", "ns", "a", 2)
		b.push()
		a.want(map[string]string{"kubernetes://a": fmt.Sprintf(pairOf, "c1/ns/a 2")})
		// One more name: the other secret is not sent again.
		w.secret("c1", "ns", "b", 1)
		b.push()
		b.eventually("ACK", func() bool {
			st := b.hub.Proxies()[0].Types["SDS"]
			return st.Acked != "" && st.Acked == st.Sent
		})
		if v == xdswire.SotW {
			a.request("SDS", a.nonce.Load().(string), []string{"kubernetes://a", "kubernetes://b"}, nil, "")
		} else {
			a.subscribe("SDS", "kubernetes://a", "kubernetes://b")
		}
		a.want(map[string]string{"kubernetes://b": fmt.Sprintf(pairOf, "c1/ns/b 1")})
	})
}

// TestPermissionToReadKeysEnds: A change of the proxy's pod ends its permission.
func TestPermissionToReadKeysEnds(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		w.secret("c1", "ns", "s", 1)
		b := startServer(t, w.testMesh, realGenerator, func(c *Config, _ *Access) {
			c.MayReadKeys = func(s *snapshot.Snapshot, _ mesh.Caller, n proxy.Node) error {
				if s.Pods.Get("/ns/"+n.ID.Name) == nil {
					return errors.New("there is no such pod")
				}
				return nil
			}
		})
		a := b.ask(v, "ns/gw@c1", gateway, "SDS", "kubernetes://s", "kubernetes://s-cacert")
		a.want(map[string]string{"kubernetes://s-cacert": "roots c1/ns/s 1"})
		w.view("/ns/gw", "any")
		b.push()
		a.want(map[string]string{"kubernetes://s": fmt.Sprintf(pairOf, "c1/ns/s 1")})
		next := *w.s
		next.Pods = next.Pods.With(map[string]*snapshot.Pod{"/ns/gw": nil})
		w.s = &next
		w.changes.Pods = map[string]struct{}{"/ns/gw": {}}
		b.push()
		b.eventually("second warning", func() bool { return strings.Count(b.logs.String(), "there is no such pod") == 2 })
		w.secret("c1", "ns", "s", 2)
		b.push()
		a.want(map[string]string{"kubernetes://s-cacert": "roots c1/ns/s 2"})
	})
}

// TestNoNewKeyAfterPermissionEnds: Permission and key change together. A proxy
// without permission must not see the new key.
func TestNoNewKeyAfterPermissionEnds(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		for range 10 {
			w := newRegistryMesh()
			w.secret("c1", "ns", "s", 1)
			b := startServer(t, w.testMesh, realGenerator, func(c *Config, _ *Access) {
				c.MayReadKeys = func(s *snapshot.Snapshot, _ mesh.Caller, n proxy.Node) error {
					if s.Pods.Get("/ns/"+n.ID.Name) == nil {
						return errors.New("there is no such pod")
					}
					return nil
				}
			})
			w.view("/ns/gw", "any")
			b.push()
			a := b.ask(v, "ns/gw@c1", gateway, "SDS", "kubernetes://s", "kubernetes://s-cacert")
			a.want(map[string]string{"kubernetes://s": fmt.Sprintf(pairOf, "c1/ns/s 1"), "kubernetes://s-cacert": "roots c1/ns/s 1"})
			b.eventually("ACK", func() bool { p := b.hub.Proxies(); return len(p) == 1 && p[0].Types["SDS"].Acked != "" })
			next := *w.s
			next.Pods = next.Pods.With(map[string]*snapshot.Pod{"/ns/gw": nil})
			w.s = &next
			w.changes.Pods = map[string]struct{}{"/ns/gw": {}}
			w.secret("c1", "ns", "s", 2)
			b.push()
			a.want(map[string]string{"kubernetes://s-cacert": "roots c1/ns/s 2"})
			b.stop()
		}
	})
}

// TestKeysAreNotShown: A proxy refuses a secret with a text that contains the key. The
// key must not appear on any page or in a log.
func TestKeysAreNotShown(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		w.secret("c1", "ns", "s", 1)
		b := startServer(t, w.testMesh, realGenerator)
		c := b.connectOn(b.dial(grpc.WithUserAgent("ns/gw@c1")), v, "x")
		c.node = &corev3.Node{Id: gateway}
		c.subscribe("SDS", "kubernetes://s", "kubernetes://"+keyMark)
		var nonce, key string
		var s tlsv3.Secret
		if v == xdswire.Delta {
			m, err := c.delta.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if err := proto.Unmarshal(m.GetResources()[0].GetResource().GetValue(), &s); err != nil {
				t.Fatal(err)
			}
			nonce = m.GetNonce()
		} else {
			m, err := c.sotw.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if err := proto.Unmarshal(m.GetResources()[0].GetValue(), &s); err != nil {
				t.Fatal(err)
			}
			nonce = m.GetNonce()
		}
		if key = string(s.GetTlsCertificate().GetPrivateKey().GetInlineBytes()); key != keyMark+"c1/ns/s 1" {
			t.Fatalf("sent key %q", key)
		}
		c.request("SDS", nonce, []string{"kubernetes://s"}, nil, "bad key "+key)
		b.eventually("NACK", func() bool { return b.metric("meshctl_xds_nacks_total", "SDS") == 1 })
		b.eventually("record of it", func() bool { return len(b.hub.NACKs().NACKs) == 1 })
		views, err := b.hub.Views(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		for _, page := range []any{views, b.hub.Proxies(), b.hub.NACKs(), b.hub.History().History("gw.ns"), b.hub.History().Timeline(), b.hub.History().Streams()} {
			if err := json.NewEncoder(&out).Encode(page); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "%+v\n", page)
		}
		if !slices.ContainsFunc(views, func(v LiveView) bool { return v.Of == "namespace ns, cluster c1" }) {
			t.Errorf("the secrets' view is not described: %+v", views)
		}
		out.WriteString(b.logs.String())
		if strings.Contains(out.String(), "MIGHAgEAMBMGc1") || strings.Contains(out.String(), "chain c1") {
			t.Errorf("a secret is shown:\n%s", out.String())
		}
		if !strings.Contains(out.String(), "bad key") && !strings.Contains(out.String(), "not shown") {
			t.Errorf("the refusal is not shown:\n%s", out.String())
		}
	})
}

// TestNameTableIsMadeOnDemand: The name table is one resource without a name; a change
// regenerates one entry of it.
func TestNameTableIsMadeOnDemand(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newRegistryMesh()
		for i := range 50 {
			w.service(fmt.Sprintf("svc%d", i), fmt.Sprintf("10.9.0.%d", i+1))
		}
		b := startServer(t, w.testMesh, realGenerator)
		clusters := b.ask(v, "ns/web@c1", "sidecar~10.0.0.1~web.ns~x", "CDS")
		clusters.next()
		if n := b.metric("meshctl_xds_generated_total", "NDS"); n != 0 {
			t.Errorf("%v entries generated though nobody asked", n)
		}
		a := b.ask(v, "ns/web@c1", "sidecar~10.0.0.1~web.ns~x", "NDS")
		table := func() string {
			t.Helper()
			got := a.next()
			if _, nameless := got[""]; len(got) != 1 || !nameless {
				t.Fatalf("got %d resources, want one without a name", len(got))
			}
			return string(got[""])
		}
		first := table()
		for i := range 50 {
			if !strings.Contains(first, fmt.Sprintf("svc%d.ns.svc.cluster.local", i)) {
				t.Errorf("the table lacks svc%d", i)
			}
		}
		w.service("svc7", "10.9.1.7")
		b.push()
		if second := table(); second != strings.Replace(first, "10.9.0.8\x12", "10.9.1.7\x12", 1) {
			t.Errorf("more than one entry differs:\n%q\n%q", first, second)
		}
		if n := b.metric("meshctl_xds_generated_total", "NDS"); n != 51 {
			t.Errorf("%v entries generated, want 51", n)
		}
		w.service("svc7", "")
		b.push()
		if strings.Contains(table(), "svc7.") {
			t.Error("the entry of a service that is gone stays")
		}
		for i := range 50 {
			w.service(fmt.Sprintf("svc%d", i), "")
		}
		b.push()
		if got := table(); got != "" {
			t.Errorf("the empty table is %q", got)
		}
	})
}
