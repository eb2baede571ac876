package server

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/xdswire"
)

var modelSeeds = flag.Int("seeds", 0, "how many seeds TestModel runs; 0 is 6, and 1 with -short or the race detector")

// TestModel changes the YAML of a mesh of two clusters at random. Meanwhile proxies of both
// variants connect, reconnect with their resources, refuse responses, stop reading and change
// their subscriptions, and the server restarts. Proxies check every response (see modelProxy).
// Whenever the mesh rests, each must hold the state of the model, and at the end the state
// that a new server gives to a new proxy.
func TestModel(t *testing.T) {
	seeds := *modelSeeds
	info, _ := debug.ReadBuildInfo()
	race := slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
	switch {
	case seeds > 0:
	case testing.Short() || race:
		seeds = 1
	default:
		seeds = 6
	}
	state := t.TempDir() // one CA for all: to make one takes long
	var spared atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				m := newModel(t, seed, filepath.Join(state, fmt.Sprint(seed)), modelRoles, 4)
				defer m.close()
				m.run(&spared)
			})
		}
	})
	t.Logf("%d resources were not sent again to proxies that held them", spared.Load())
	if spared.Load() == 0 {
		t.Error("no resource was held over a restart")
	}
}

// Acts of a run between two rests.
const modelActs = 25

// model is a mesh, its expected state, and its proxies.
type model struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	log  []string // the last acts

	dir, remoteDir, state string
	server                *Server
	stop                  func()
	done                  <-chan error
	addr                  atomic.Pointer[string] // nil while no server runs
	proxies               []*modelProxy

	services map[string]*modelService // by file name
	churn    int                      // services that come and go
	remote   bool                     // the second cluster has its objects
	sidecar  bool                     // of ns2: it sees ns0 and itself
	tick     int                      // part of the resources of one service
	broken   map[string]bool          // files that cannot be read
	rules    map[string]modelRule     // by file name
	routes   map[string]bool          // hosts with a VirtualService
	moved    bool                     // the stable services' files have their other names
	onDemand bool                     // proxies that discover virtual hosts request them
}

// modelService is a service with an HTTP port 80 and endpoints at port 8080.
type modelService struct {
	name, namespace string
	entry           bool // a ServiceEntry defines it
	private         bool
	more            bool // a port 81
	endpoints       []string
	remote          []string // those in the second cluster
}

func (s *modelService) host() string {
	if s.entry {
		return s.name + ".example.com"
	}
	return s.name + "." + s.namespace + ".svc.cluster.local"
}

// modelRule is a DestinationRule for a service. It may have a subset of the endpoints of the
// first cluster.
type modelRule struct {
	host, namespace string
	private         bool
	subset          bool
}

const modelSubset = "here"

func (s *modelService) cluster() string { return "outbound|80||" + s.host() }

func newModel(t *testing.T, seed uint64, state string, proxies, churn int) *model {
	m := &model{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), churn: churn,
		dir: t.TempDir(), remoteDir: t.TempDir(), state: state,
		services: make(map[string]*modelService), broken: make(map[string]bool),
		rules: make(map[string]modelRule), routes: make(map[string]bool), onDemand: seed%2 == 1,
	}
	for i := range 2 {
		m.put(fmt.Sprintf("stable-%d", i), &modelService{
			name: fmt.Sprintf("stable-%d", i), namespace: "ns0", more: true,
			endpoints: []string{"10.1.0.1"}, remote: []string{"10.2.0.1"},
		})
	}
	for i := range 3 {
		m.put(fmt.Sprintf("turn-%d", i), &modelService{
			name: fmt.Sprintf("turn-ns%d", i), namespace: fmt.Sprintf("ns%d", i), endpoints: []string{fmt.Sprintf("10.3.0.%d", i)},
		})
	}
	m.setRemote(true)
	m.setTick()
	m.start()
	for i := range proxies {
		m.proxies = append(m.proxies, newModelProxy(m, i))
	}
	return m
}

// start runs a server and waits until it is ready.
func (m *model) start() {
	m.t.Helper()
	m.server, m.stop, m.done = m.launch()
	addr := m.server.plain.Addr().String()
	m.addr.Store(&addr)
}

func (m *model) launch() (*Server, func(), <-chan error) {
	m.t.Helper()
	s, stop, done := launch(m.t, func(c *Config) {
		c.ConfigDir, c.StateDir, c.Log = m.dir, m.state, slog.New(slog.DiscardHandler)
		c.RemoteDirs = []ClusterDir{{Cluster: "cluster2", Dir: m.remoteDir}}
		c.SecureGRPCAddr, c.HTTPAddr, c.MonitoringAddr = "", "", ""
		if c.VirtualHostDiscovery, c.HostsOnDemand = true, m.onDemand; m.onDemand {
			c.Limits.PushedHosts = 1
		}
	})
	waitFor(m.t, "readiness", s.ready.Load)
	return s, stop, done
}

// end stops the server. Proxies do not connect to its port again, which may then belong to
// the server of another test.
func (m *model) end() {
	m.addr.Store(nil)
	m.stop()
	if err := <-m.done; err != nil {
		m.errorf("the server ended with %v", err)
	}
}

func (m *model) close() {
	for _, p := range m.proxies {
		p.close()
	}
	m.end()
	if m.t.Failed() {
		m.t.Logf("seed %d, what was done:\n%s", m.seed, strings.Join(m.log, "\n"))
	}
}

// errorf may be called from any goroutine.
func (m *model) errorf(format string, args ...any) {
	m.t.Helper()
	m.t.Errorf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *model) say(format string, args ...any) {
	m.log = append(m.log[max(0, len(m.log)-1000):], fmt.Sprintf(format, args...))
}

func (m *model) run(spared *atomic.Int64) {
	for range modelActs {
		m.act()
	}
	m.rest()
	if m.t.Failed() {
		return
	}
	m.restart(spared)
	for range modelActs {
		m.act()
	}
	m.say("the server starts anew amid all")
	m.repair()
	m.end()
	m.start()
	for range modelActs {
		m.act()
	}
	m.rest()
	if !m.t.Failed() {
		m.waitQuiet()
		m.compareWithNew()
	}
}

// act performs one random act.
func (m *model) act() {
	p := m.proxies[m.rng.IntN(len(m.proxies))]
	switch n := m.rng.IntN(100); {
	case n < 50:
		m.change()
	case n < 62:
		m.setTick()
		if m.rng.IntN(2) == 0 {
			m.await()
		}
	case n < 72:
		forget := m.rng.IntN(3) == 0
		m.say("proxy %d reconnects, forgetting: %v", p.number, forget)
		p.kick(forget)
	case n < 80:
		m.say("proxy %d reads: %v", p.number, p.doze())
	case n < 92:
		m.say("proxy %d changes its subscription: %s", p.number, p.resubscribe(m.rng))
	default:
		for _, p := range m.proxies {
			p.naughty.Store(p.refuses && m.rng.IntN(2) == 0)
		}
	}
}

// change changes the mesh.
func (m *model) change() {
	switch n := m.rng.IntN(100); {
	case n < 20:
		m.setEndpoints()
	case n < 33:
		m.comeOrGo(fmt.Sprintf("churn-%d", m.rng.IntN(m.churn)), m.anyNamespace)
	case n < 40:
		i := m.rng.IntN(5)
		m.comeOrGo(fmt.Sprintf("entry-%d", i), func(s *modelService) {
			m.anyNamespace(s)
			if s.name, s.entry = fmt.Sprintf("external-%d", i), true; i >= 2 {
				s.name, s.namespace, s.private = fmt.Sprintf("secret-ns%d", i-2), fmt.Sprintf("ns%d", i-2), true
			}
		})
	case n < 50:
		m.setRule()
	case n < 54:
		m.setRoute()
	case n < 66:
		i := m.rng.IntN(3)
		m.comeOrGo(fmt.Sprintf("secret-%d", i), func(s *modelService) {
			s.name, s.namespace, s.private = fmt.Sprintf("secret-ns%d", i), fmt.Sprintf("ns%d", i), true
		})
	case n < 76:
		s := m.services[fmt.Sprintf("turn-%d", m.rng.IntN(3))]
		s.private = !s.private
		m.say("%s is private: %v", s.name, s.private)
		m.write(m.dir, m.fileOf("turn-"+s.namespace[2:]), s.yaml("10.96.0.1"))
	case n < 80:
		m.setRemote(!m.remote)
	case n < 85:
		m.sidecar = !m.sidecar
		m.toggle("sidecar.yaml", m.sidecar, sidecarYAML)
	case n < 90:
		file := fmt.Sprintf("policy-%d.yaml", m.rng.IntN(3))
		_, err := os.Stat(filepath.Join(m.dir, file))
		mode := []string{"STRICT", "DISABLE", "PERMISSIVE"}[m.rng.IntN(3)]
		m.toggle(file, err != nil, fmt.Sprintf(policyYAML, file[7:8], mode))
	case n < 95:
		m.say("the mesh's configuration changes")
		m.write(m.dir, "mesh.yaml", fmt.Sprintf(meshYAML, 1+m.rng.IntN(3), []string{"ALLOW_ANY", "REGISTRY_ONLY"}[m.rng.IntN(2)]))
	case n < 98:
		m.move()
	default:
		if file := fmt.Sprintf("churn-%d", m.rng.IntN(m.churn)); m.services[file] != nil {
			m.say("%s breaks", file)
			m.broken[file] = true
			m.write(m.dir, file+".yaml", "apiVersion: v1\nkind: Service\nmetadata: [\n")
		}
	}
}

// comeOrGo adds or removes a service.
func (m *model) comeOrGo(file string, fill func(*modelService)) {
	if s := m.services[file]; s != nil {
		m.say("%s goes", s.host())
		delete(m.services, file)
		delete(m.broken, file)
		m.remove(m.dir, file+".yaml")
		if !s.entry {
			m.remove(m.dir, file+"-slice.yaml")
		}
		return
	}
	s := &modelService{name: file}
	fill(s)
	s.endpoints = m.addresses(s)
	m.say("%s comes", s.host())
	m.put(file, s)
}

func (m *model) anyNamespace(s *modelService) { s.namespace = fmt.Sprintf("ns%d", m.rng.IntN(3)) }

// addresses returns random endpoints. Private services have a range of their own.
func (m *model) addresses(s *modelService) []string {
	prefix := "10.1.0."
	if strings.HasPrefix(s.name, "secret") {
		prefix = "10.66." + s.namespace[2:] + "."
	}
	var out []string
	for range 1 + m.rng.IntN(3) {
		if a := prefix + fmt.Sprint(1+m.rng.IntN(9)); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

func (m *model) setEndpoints() {
	files := slices.Sorted(maps.Keys(m.services))
	file := files[m.rng.IntN(len(files))]
	s := m.services[file]
	s.endpoints = m.addresses(s)
	m.say("%s has endpoints %v", s.name, s.endpoints)
	if s.entry {
		m.write(m.dir, m.fileOf(file), s.yaml(""))
		return
	}
	m.write(m.dir, m.fileOf(file+"-slice"), s.sliceYAML(s.endpoints))
}

// anyService returns a service that is always there.
func (m *model) anyService() (host, namespace string) {
	file := []string{"stable-0", "stable-1", "turn-0", "turn-1", "turn-2"}[m.rng.IntN(5)]
	s := m.services[file]
	return s.host(), s.namespace
}

// setRule adds, changes or removes a DestinationRule of a service, in the namespace of the
// service or of a client.
func (m *model) setRule() {
	r := modelRule{private: m.rng.IntN(3) == 0, subset: m.rng.IntN(3) > 0}
	r.host, r.namespace = m.anyService()
	if m.rng.IntN(2) == 0 {
		r.namespace = fmt.Sprintf("ns%d", m.rng.IntN(3))
	}
	file := fmt.Sprintf("rule-%s-%s.yaml", r.host, r.namespace)
	if _, there := m.rules[file]; there && m.rng.IntN(2) == 0 {
		m.say("the rule of %s for %s goes", r.namespace, r.host)
		delete(m.rules, file)
		m.remove(m.dir, file)
		return
	}
	m.say("a rule: %+v", r)
	m.rules[file] = r
	m.write(m.dir, file, r.yaml(1+m.rng.IntN(3)))
}

// setRoute adds, changes or removes a VirtualService of a service.
func (m *model) setRoute() {
	host, namespace := m.anyService()
	file := fmt.Sprintf("route-%s.yaml", host)
	if m.routes[host] && m.rng.IntN(2) == 0 {
		m.say("the routes of %s go", host)
		delete(m.routes, host)
		m.remove(m.dir, file)
		return
	}
	m.say("routes of %s", host)
	m.routes[host] = true
	m.write(m.dir, file, fmt.Sprintf(routeYAML, namespace, host, []string{"*", "."}[m.rng.IntN(2)], 1+m.rng.IntN(3)))
}

// ruleFor returns the DestinationRule that clients in a namespace use for a service.
func (m *model) ruleFor(s *modelService, client string) modelRule {
	of := func(namespace string) (modelRule, bool) {
		r, ok := m.rules[fmt.Sprintf("rule-%s-%s.yaml", s.host(), namespace)]
		return r, ok
	}
	if r, ok := of(client); ok {
		return r
	}
	if r, _ := of(s.namespace); !r.private {
		return r
	}
	return modelRule{}
}

// fileOf returns the file of a service, which may have been renamed.
func (m *model) fileOf(name string) string {
	if m.moved && strings.HasPrefix(name, "stable") {
		return "z-" + name + ".yaml"
	}
	return name + ".yaml"
}

// move renames the files of the services that are always there.
func (m *model) move() {
	for i := range 2 {
		for _, name := range []string{fmt.Sprintf("stable-%d", i), fmt.Sprintf("stable-%d-slice", i)} {
			from := m.fileOf(name)
			m.moved = !m.moved
			to := m.fileOf(name)
			m.moved = !m.moved
			m.say("%s is renamed to %s", from, to)
			if err := os.Rename(filepath.Join(m.dir, from), filepath.Join(m.dir, to)); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	m.moved = !m.moved
}

func (m *model) toggle(file string, there bool, content string) {
	m.say("%s is there: %v", file, there)
	if there {
		m.write(m.dir, file, content)
		return
	}
	m.remove(m.dir, file)
}

// put writes a service after its endpoints.
func (m *model) put(file string, s *modelService) {
	m.services[file] = s
	if !s.entry {
		m.write(m.dir, file+"-slice.yaml", s.sliceYAML(s.endpoints))
	}
	m.write(m.dir, file+".yaml", s.yaml("10.96.0.1"))
}

// setRemote adds or removes all objects of the second cluster.
func (m *model) setRemote(there bool) {
	m.remote = there
	m.say("the second cluster has objects: %v", there)
	for _, file := range slices.Sorted(maps.Keys(m.services)) {
		s := m.services[file]
		switch {
		case len(s.remote) == 0:
		case there:
			m.write(m.remoteDir, file+".yaml", s.yaml("10.97.0.1"))
			m.write(m.remoteDir, file+"-slice.yaml", s.sliceYAML(s.remote))
		default:
			m.remove(m.remoteDir, file+".yaml")
			m.remove(m.remoteDir, file+"-slice.yaml")
		}
	}
}

// setTick increments the tick. It is in a cluster (its connection limit and, with mTLS, the
// account of its pod), an assignment (the address of the pod), a listener and a route (the
// address of the service). So each of them changes, and a proxy that refused the last one gets
// the next.
func (m *model) setTick() {
	m.tick++
	m.say("tick %d", m.tick)
	m.write(m.dir, "tick.yaml", fmt.Sprintf(tickYAML, m.tick, m.tick/250, m.tick%250))
}

func (m *model) write(dir, file, content string) { write(m.t, dir, file, content) }

func (m *model) remove(dir, file string) {
	if err := os.Remove(filepath.Join(dir, file)); err != nil {
		m.t.Fatal(err)
	}
}

// repair rewrites unreadable files, as a new server would not know their objects.
func (m *model) repair() {
	for file := range m.broken {
		m.write(m.dir, file+".yaml", m.services[file].yaml("10.96.0.1"))
	}
	clear(m.broken)
}

// await waits until the first proxy has the last tick.
func (m *model) await() {
	m.t.Helper()
	p := m.proxies[0]
	p.wakeUp()
	waitFor(m.t, "tick at a proxy", func() bool { return p.ticked(xdswire.EndpointType) >= m.tick || m.t.Failed() })
}

// rest lets the proxies behave and waits until all hold the state of the model.
func (m *model) rest() {
	m.t.Helper()
	m.say("the mesh rests")
	m.repair()
	for _, p := range m.proxies {
		p.behave()
	}
	m.setTick()
	var wrong string
	deadline := time.Now().Add(patience)
	for _, p := range m.proxies {
		if m.t.Failed() {
			return
		}
		if p.refuses { // whatever it refused, it is told of what is new
			waitFor(m.t, "tick at "+p.String(), func() bool {
				return p.ticked(xdswire.EndpointType) >= m.tick || m.t.Failed()
			})
			p.kick(false) // what it refused it is not sent again on the same stream
			waitFor(m.t, "answers to "+p.String(), func() bool { return p.answered() || m.t.Failed() })
		}
		for wrong = p.differs(); wrong != "" && time.Now().Before(deadline) && !m.t.Failed(); wrong = p.differs() {
			time.Sleep(time.Millisecond)
		}
		if wrong != "" {
			m.errorf("%v after %v:\n%s", p, patience, wrong)
		}
	}
}

// restart starts a new server on the same directories. Every proxy reconnects with its
// resources. As nothing has changed, versions stay, and proxies that can report their
// resources do not get them again.
func (m *model) restart(spared *atomic.Int64) {
	m.t.Helper()
	m.say("the server starts anew at rest")
	m.waitQuiet()
	for _, p := range m.proxies {
		p.unchanging(true)
	}
	m.end()
	m.start()
	for _, p := range m.proxies {
		waitFor(m.t, "answers to "+p.String(), func() bool { return p.answered() || m.t.Failed() })
	}
	for _, p := range m.proxies {
		spared.Add(int64(p.unchanging(false)))
		if wrong := p.differs(); wrong != "" {
			m.errorf("%v after a restart: %s", p, wrong)
		}
	}
}

// waitQuiet waits until the server has nothing to send.
func (m *model) waitQuiet() {
	m.t.Helper()
	waitFor(m.t, "acknowledgement of everything", func() bool {
		known := m.server.hub.Proxies()
		for _, p := range known {
			for _, typ := range p.Types {
				if typ.Sent != typ.Acked {
					return false
				}
			}
		}
		return len(known) == len(m.proxies)
	})
}

// compareWithNew compares the resources of each proxy with the resources of a new proxy at a new
// server.
func (m *model) compareWithNew() {
	m.t.Helper()
	s, stop, done := m.launch()
	defer func() {
		stop()
		if err := <-done; err != nil {
			m.errorf("the new server ended with %v", err)
		}
	}()
	addr := s.plain.Addr().String()
	m.addr.Store(&addr)
	for _, p := range m.proxies {
		other := p.twin()
		waitFor(m.t, "the state of "+other.String(), func() bool { return other.answered() && other.differs() == "" || m.t.Failed() })
		if diff := p.compare(other); diff != "" {
			m.errorf("%v holds other than a new server gives (-held +given):\n%s", p, diff)
		}
		other.close()
	}
}

// visible reports whether the service is visible in the namespace.
func (m *model) visible(s *modelService, namespace string) bool {
	if s.private && s.namespace != namespace {
		return false
	}
	return namespace != "ns2" || !m.sidecar || s.namespace == "ns0" || s.namespace == "ns2"
}

// endpointsFor returns the expected addresses of each cluster for the namespace.
func (m *model) endpointsFor(namespace string) map[string]string {
	out := map[string]string{"outbound|80||tick.ns0.svc.cluster.local": fmt.Sprintf("10.77.%d.%d:8080", m.tick/250, m.tick%250)}
	for _, s := range m.services {
		if !m.visible(s, namespace) {
			continue
		}
		all := s.endpoints
		if m.remote {
			all = slices.Concat(all, s.remote)
		}
		out[s.cluster()] = atPort(all)
		if m.ruleFor(s, namespace).subset {
			out["outbound|80|"+modelSubset+"|"+s.host()] = atPort(s.endpoints)
		}
	}
	return out
}

// atPort returns the addresses of endpoints, sorted, as addressesOf does.
func atPort(endpoints []string) string {
	var all []string
	for _, e := range endpoints {
		all = append(all, e+":8080")
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (r modelRule) yaml(connections int) string {
	export, subsets := "*", ""
	if r.private {
		export = "."
	}
	if r.subset {
		subsets = fmt.Sprintf(", subsets: [{name: %s, labels: {topology.istio.io/cluster: cluster1}}]", modelSubset)
	}
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]q, namespace: %[2]s}
spec: {host: %[1]s, exportTo: [%[3]q], trafficPolicy: {connectionPool: {tcp: {maxConnections: %[4]d}}}%[5]s}
`, r.host, r.namespace, export, connections, subsets)
}

func (s *modelService) entryYAML() string {
	export, endpoints := "*", ""
	if s.private {
		export = "."
	}
	for _, e := range s.endpoints {
		endpoints += fmt.Sprintf("\n  - {address: %s, ports: {http: 8080}}", e)
	}
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%s]
  exportTo: [%q]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{name: http, number: 80, protocol: HTTP}]
  endpoints:%s
`, s.name, s.namespace, s.host(), export, endpoints)
}

// yaml returns the object that defines the service. A ServiceEntry also has its endpoints, and
// no address.
func (s *modelService) yaml(ip string) string {
	if s.entry {
		return s.entryYAML()
	}
	export, more := "", ""
	if s.private {
		export = ", annotations: {networking.istio.io/exportTo: .}"
	}
	if s.more {
		more = ", {name: http-more, port: 81, targetPort: 8080}"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s%s}
spec:
  clusterIP: %s
  ports: [{name: http, port: 80, targetPort: 8080}%s]
`, s.name, s.namespace, export, ip, more)
}

func (s *modelService) sliceYAML(addresses []string) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: http-more, port: 8081}]
endpoints: [{addresses: [%s]}]
`, s.name, s.namespace, s.name, strings.Join(addresses, ", "))
}

const (
	tickYAML = `apiVersion: v1
kind: Service
metadata: {name: tick, namespace: ns0}
spec:
  clusterIP: 10.78.%[2]d.%[3]d
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000}]
---
apiVersion: v1
kind: Pod
metadata: {name: tick, namespace: ns0, labels: {security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: sa-tick-%[1]d}
status: {podIP: 10.77.%[2]d.%[3]d}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: tick, namespace: ns0, labels: {kubernetes.io/service-name: tick}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]
endpoints: [{addresses: [10.77.%[2]d.%[3]d], targetRef: {kind: Pod, name: tick}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: tick, namespace: ns0}
spec: {host: tick.ns0.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {maxConnections: %[1]d}}}}
`
	routeYAML = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[2]q, namespace: %[1]s}
spec: {hosts: [%[2]s], exportTo: [%[3]q], http: [{timeout: %[4]ds, route: [{destination: {host: %[2]s}}]}]}
`
	sidecarYAML = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: ns2}
spec: {egress: [{hosts: ["ns0/*", "./*"]}]}
`
	policyYAML = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: ns%s}
spec: {mtls: {mode: %s}}
`
	meshYAML = `apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    connectTimeout: %ds
    outboundTrafficPolicy: {mode: %s}
`
)
