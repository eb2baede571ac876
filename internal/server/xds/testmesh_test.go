package xds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// testMesh is a snapshot under construction. Its resources are services with the host
// "<type>/<view>/<name>" and the content as Name.
type testMesh struct {
	s       *snapshot.Snapshot
	changes *snapshot.Changes
}

func newTestMesh() *testMesh {
	return &testMesh{s: &snapshot.Snapshot{Mesh: &snapshot.Mesh{}}, changes: &snapshot.Changes{}}
}

// set sets the content of a resource; an empty content removes it.
func (w *testMesh) set(typ, view, name, content string) *testMesh {
	key := typ + "/" + view + "/" + name
	var svc *snapshot.MeshService
	if content != "" {
		svc = &snapshot.MeshService{Host: name, Name: content}
	}
	next := *w.s
	next.Services = next.Services.With(map[string]*snapshot.MeshService{key: svc})
	w.s = &next
	changed := &w.changes.Services
	if typ == "EDS" {
		changed = &w.changes.Endpoints
	}
	if *changed == nil {
		*changed = make(map[string]struct{})
	}
	(*changed)[key] = struct{}{}
	return w
}

// view sets the shared view of the proxies with a name.
func (w *testMesh) view(proxy, view string) *testMesh {
	next := *w.s
	next.Pods = next.Pods.With(map[string]*snapshot.Pod{proxy: {Node: view}})
	w.s = &next
	if w.changes.Pods == nil {
		w.changes.Pods = make(map[string]struct{})
	}
	w.changes.Pods[proxy] = struct{}{}
	return w
}

// take returns the snapshot and the changes since the last call.
func (w *testMesh) take() (*snapshot.Snapshot, *snapshot.Changes) {
	next := *w.s
	next.Seq++
	w.s = &next
	c := w.changes
	w.changes = &snapshot.Changes{}
	return w.s, c
}

// testView holds all resources of a type with the view in their host.
type testView struct{ typ, name string }

func (v testView) Type() string { return v.typ }
func (v testView) Keys() units.Keys {
	if v.typ == xdswire.EndpointType {
		return units.Keys{ServiceFacts: snapshot.EndpointFacts}
	}
	return units.Keys{ServiceFacts: snapshot.ServiceFacts}
}

func (v testView) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	svc := s.Services.Get(k.Name)
	if svc == nil || !strings.HasPrefix(k.Name, xdswire.ShortType(v.typ)+"/"+v.name+"/") {
		return nil
	}
	return testUnit{v.typ, svc}
}

type testUnit struct {
	typ string
	svc *snapshot.MeshService
}

func (u testUnit) Type() string { return u.typ }

func (u testUnit) Generate(e *xdswire.Encoder) ([]*xdswire.Resource, error) {
	switch u.svc.Name {
	case "broken":
		return nil, errors.New("broken on purpose")
	case "panic":
		panic("on purpose")
	}
	r, err := e.Resource(u.typ, u.svc.Host, wrapperspb.String(u.svc.Name))
	return []*xdswire.Resource{r}, err
}

// testGenerator gives every proxy the view "shared", or the view set for it, and a
// view with its own name.
func testGenerator() Generator { return generatorOf() }

// generatorOf is testGenerator with more types.
func generatorOf(more ...string) Generator {
	return Generator{
		ParseNode: func(n *corev3.Node, maxMetadata int) (proxy.Node, error) {
			if strings.Contains(n.GetId(), "panic") {
				panic("on purpose")
			}
			return proxy.ParseNode(n, maxMetadata)
		},
		Assign: func(s *snapshot.Snapshot, n proxy.Node) units.Assignment {
			shared := "shared"
			if p := s.Pods.Get(n.ID.Name); p != nil {
				shared = p.Node
			}
			if shared == "panic" {
				panic("on purpose")
			}
			a := make(units.Assignment)
			for _, t := range append(xdswire.PushOrder[:4:4], more...) {
				a[t] = units.Views{Shared: testView{t, shared}, Own: testView{t, n.ID.Name}}
			}
			return a
		},
		AssignReads: func(n proxy.Node) (pod, namespace string) { return n.ID.Name, n.Namespace },
		Concerned: func(_ *snapshot.Snapshot, c *snapshot.Changes) func(proxy.Node) bool {
			if c.Everywhere {
				return func(proxy.Node) bool { return true }
			}
			return nil
		},
		Fallback: func(t, name string, e *xdswire.Encoder) (*xdswire.Resource, error) {
			return e.Resource(t, name, wrapperspb.String(name+":fallback"))
		},
	}
}

func testNode(name string) *corev3.Node {
	return &corev3.Node{Id: "sidecar~127.0.0.1~" + name + ".ns~ns.svc.cluster.local"}
}

func contents(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s=%s", k, m[k]))
	}
	return strings.Join(out, " ")
}
