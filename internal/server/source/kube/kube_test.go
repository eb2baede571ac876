package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/test/kube"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the waits of tests.
const patience = 2 * time.Minute

// record is a sink that records events and log lines.
type record struct {
	t       testing.TB
	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each change
	objects map[snapshot.Key]snapshot.Object
	synced  int
	puts    int
	removed []string // what was deleted, in order
	log     bytes.Buffer
}

func newRecord(t testing.TB) *record {
	return &record{t: t, changed: make(chan struct{}), objects: make(map[snapshot.Key]snapshot.Object)}
}

func (r *record) update(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *record) Apply(events []snapshot.Event) {
	r.update(func() {
		for _, e := range events {
			if e.Object == nil {
				if r.objects[e.Key] == nil {
					r.t.Errorf("%s is deleted but was never there", e.Key)
				}
				delete(r.objects, e.Key)
				r.removed = append(r.removed, e.Key.String())
				continue
			}
			if e.Object.Key() != e.Key {
				r.t.Errorf("%s is handed over as %s", e.Object.Key(), e.Key)
			}
			r.puts++
			r.objects[e.Key] = e.Object
		}
	})
}

func (r *record) Synced(mesh.ClusterID) { r.update(func() { r.synced++ }) }

// Write records a log line.
func (r *record) Write(b []byte) (int, error) {
	r.update(func() { r.log.Write(b) })
	return len(b), nil
}

// until waits until done returns true. It calls done under the lock, after each change
// and periodically.
func (r *record) until(what string, done func() bool) {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			r.t.Fatalf("%s: did not happen; there are %v\n%s", what, r.names(), r.text())
		}
	}
}

func (r *record) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *record) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for k := range maps.Keys(r.objects) {
		out = append(out, k.String())
	}
	slices.Sort(out)
	return out
}

// now is get for callers without the lock.
func (r *record) now(kind snapshot.Kind, namespace, name string) snapshot.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.get(kind, namespace, name)
}

// handed returns the number of delivered objects and the deleted ones.
func (r *record) handed() (puts int, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.puts, slices.Clone(r.removed)
}

func (r *record) get(kind snapshot.Kind, namespace, name string) snapshot.Object {
	return r.objects[snapshot.Key{Kind: kind, Cluster: "c1", Namespace: namespace, Name: name}]
}

// run runs a source until the test ends or stop is called.
func run(t testing.TB, cfg *rest.Config, change func(*Source)) (s *Source, r *record, stop func()) {
	t.Helper()
	r = newRecord(t)
	s = &Source{
		Cluster: "c1", Config: cfg, Configuration: true, SecretNamespaces: []string{"*"},
		Log: slog.New(slog.NewTextHandler(r, nil)), Now: time.Now,
	}
	if change != nil {
		change(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return s, r, stop
}

func (s *Source) resource(name string) ResourceStatus {
	for _, r := range s.Status().Resources {
		if r.Resource == name {
			return r
		}
	}
	return ResourceStatus{}
}

const app = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS, annotations: {networking.istio.io/exportTo: "."}}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}], externalIPs: [192.0.2.1]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: NS, labels: {app: web, security.istio.io/tlsMode: istio}}
spec:
  nodeName: node-1
  serviceAccountName: web
  containers: [{name: web, image: web, ports: [{name: http, containerPort: 8080}]}]
status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-manual, namespace: NS, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.0.0.9], conditions: {ready: true}, zone: z1, nodeName: node-1, hostname: h, targetRef: {kind: Pod, name: web-1, namespace: NS}}
`

func in(namespace, documents string) string { return strings.ReplaceAll(documents, "NS", namespace) }

// TestFollow: objects are added, changed and removed.
func TestFollow(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "c1")
	ns := c.Namespace(t, "follow")
	c.Apply(t, in(ns, app))
	s, r, _ := run(t, c.Config(), nil)
	r.until("everything", func() bool { return r.synced == 1 && r.get(snapshot.KindPod, ns, "web-1") != nil })
	svc, _ := r.now(snapshot.KindService, ns, "web").(*snapshot.Service)
	if svc == nil || !slices.Equal(svc.ExportTo, []string{"."}) || svc.Ports[0].TargetName != "http" || !slices.Equal(svc.External, []string{"192.0.2.1"}) || svc.Created.IsZero() || svc.Selector["app"] != "web" || len(svc.VIPs) == 0 {
		t.Errorf("service %+v", svc)
	}
	pod, _ := r.now(snapshot.KindPod, ns, "web-1").(*snapshot.Pod)
	if pod == nil || pod.ServiceAccount != "web" || pod.Node != "node-1" || pod.Labels["app"] != "web" || len(pod.Ports) != 1 || pod.Ports[0].Number != 8080 {
		t.Errorf("pod %+v", pod)
	}
	slice, _ := r.now(snapshot.KindEndpointSlice, ns, "web-manual").(*snapshot.EndpointSlice)
	if want := (snapshot.SliceEndpoint{Ready: true, Pod: "web-1", Hostname: "h", Node: "node-1", Zone: "z1"}); slice == nil || len(slice.Endpoints) != 1 ||
		fmt.Sprintf("%+v", slice.Endpoints[0]) != strings.Replace(fmt.Sprintf("%+v", want), "[]", "[10.0.0.9]", 1) {
		t.Errorf("slice %+v", slice)
	}

	c.Apply(t, in(ns, strings.ReplaceAll(app, "10.0.0.9", "10.0.0.10")))
	r.until("change", func() bool {
		slice, _ := r.get(snapshot.KindEndpointSlice, ns, "web-manual").(*snapshot.EndpointSlice)
		return slice.Endpoints[0].Addresses[0].String() == "10.0.0.10"
	})
	c.Kubectl(t, "", "-n", ns, "delete", "endpointslice", "web-manual")
	r.until("deletion", func() bool { return r.get(snapshot.KindEndpointSlice, ns, "web-manual") == nil })
	for _, res := range s.Status().Resources {
		if res.Error != "" || !res.Synced || res.Heard.IsZero() {
			t.Errorf("%+v", res)
		}
	}
	if got := s.resource("services"); got.Objects == 0 {
		t.Errorf("services: %+v", got)
	}
	if got := s.resource("gateways.networking.istio.io"); got.Cause != CauseNotInstalled {
		t.Errorf("gateways: %+v", got)
	}
}

// TestNamespaces: a source reads only some namespaces, with a credential for only those.
func TestNamespaces(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "c1")
	one, two, other := c.Namespace(t, "one"), c.Namespace(t, "two"), c.Namespace(t, "other")
	for _, ns := range []string{one, two, other} {
		c.Apply(t, in(ns, app))
	}
	s, r, _ := run(t, c.Config(), func(s *Source) {
		s.Configuration, s.Namespaces, s.SecretNamespaces = false, []string{one, two}, nil
	})
	r.until("everything", func() bool { return r.synced == 1 })
	for ns, want := range map[string]bool{one: true, two: true, other: false} {
		for _, kind := range []snapshot.Kind{snapshot.KindService, snapshot.KindPod} {
			name := "web"
			if kind == snapshot.KindPod {
				name = "web-1"
			}
			if got := r.now(kind, ns, name) != nil; got != want {
				t.Errorf("%s of %s is read: %v, want %v", kind, ns, got, want)
			}
		}
		if r.now(snapshot.KindNamespace, "", ns) == nil {
			t.Errorf("namespace %s is not read", ns)
		}
	}
	c.Kubectl(t, "", "-n", two, "delete", "service", "web")
	r.until("deletion", func() bool { return r.get(snapshot.KindService, two, "web") == nil })
	if r.now(snapshot.KindService, one, "web") == nil {
		t.Error("the service of the other namespace is gone, too")
	}
	st := s.Status()
	if problems := st.Errors(); len(problems) != 0 {
		t.Errorf("problems %q", problems)
	}
}
