package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Sizes of the large meshes, whatever the flags say.
const (
	scaleServices   = 5000
	scaleEndpoints  = 20
	scaleNamespaces = 500
	scaleProxies    = 4 * scaleNamespaces
	scaleClusters   = 20
	scalePods       = 100_000
	sidecarReach    = 3 // namespaces that each namespace sees
)

// regime is a large mesh in which the proxies of each namespace differ from others.
type regime struct {
	name   string
	write  func(b *benchmark, dir string) error
	sees   func(proxy, service int) bool
	memory float64 // limit for each proxy
	half   float64 // limit until half of the proxies have a change
}

var regimes = []regime{
	{"Sidecars", writeSidecars, func(proxy, service int) bool {
		return (service+scaleProxies+scaleNamespaces-proxy)%scaleNamespaces < sidecarReach
	}, 100e3, 0.02},
	{"no Sidecars", func(*benchmark, string) error { return nil }, seesAll, 120e3, 0},
	{"private Services", writePrivateServices, seesAll, 0, 0},
}

func seesAll(int, int) bool { return true }

// scale measures large meshes: all, or the one with a name.
func (b *benchmark) scale(ctx context.Context, only string) error {
	known := only == ""
	measure := func(name string, of func(context.Context) error) error {
		if only != "" && only != name {
			return nil
		}
		known = true
		if err := of(ctx); err != nil {
			return fmt.Errorf("scale/%s: %w", name, err)
		}
		return nil
	}
	var err error
	for _, r := range regimes {
		err = errors.Join(err, measure(r.name, func(ctx context.Context) error { return b.regime(ctx, r) }))
	}
	if only == "" && err == nil {
		with, without := b.report.value(memoryRow("private Services")), b.report.value(memoryRow("no Sidecars"))
		b.report.add("scale: memory with private Services, ratio to the memory without them", with/without, "ratio", 1.2)
	}
	err = errors.Join(err, measure("clusters", b.clusterAdded), measure("pods", b.manyPods))
	if !known {
		return fmt.Errorf("there is no scale/%s", only)
	}
	return err
}

func memoryRow(regime string) string {
	return "scale, " + regime + ": memory a proxy (RSS growth)"
}

// large returns a benchmark of a large mesh in a directory.
func (b *benchmark) large(dir string) *benchmark {
	large := *b
	large.mesh = services{namespaces: scaleNamespaces, endpoints: scaleEndpoints}
	large.services, large.proxies = scaleServices, scaleProxies
	large.config = filepath.Join(b.dir, dir)
	return &large
}

// residents returns proxies in the namespaces of the Services.
func (b *benchmark) residents(m *meshctl) *fleet {
	f := newFleet(m.plain, kind{}, nil)
	f.namespace, f.hosts = b.mesh.namespace, b.hosts
	f.frames.stays = true
	return f
}

// regime measures one large mesh.
func (b *benchmark) regime(ctx context.Context, r regime) (err error) {
	large := b.large(strings.ReplaceAll(r.name, " ", "-"))
	if err := large.mesh.writeLarge(large.config, 0, scaleServices); err != nil {
		return err
	}
	if err := r.write(b, large.config); err != nil {
		return err
	}
	m, err := large.serve(ctx)
	if err != nil {
		return err
	}
	defer m.end(&err)
	f := large.residents(m)
	defer f.close()
	what := "scale, " + r.name
	if err := large.connect(ctx, what, m.process, f); err != nil {
		return err
	}
	large.report.limit(memoryRow(r.name), r.memory)
	b.report.Figures = large.report.Figures
	c, err := large.moveEndpointsSeen(ctx, what+" change", m, f, r.sees)
	if err != nil {
		return err
	}
	b.report.add(what+": one endpoint changes: half of the proxies have it", median(c.half), "seconds", r.half)
	b.report.add(what+": one endpoint changes: the last proxy has it", median(c.last), "seconds", 0)
	b.report.add(what+": one endpoint changes: server CPU", median(c.cpu), "seconds", 0)
	if r.name != "Sidecars" {
		return nil
	}
	return b.meshChange(ctx, what, large, m, f, r.sees)
}

// moveEndpointsSeen measures changes of one endpoint each, for the proxies that see it.
func (b *benchmark) moveEndpointsSeen(ctx context.Context, phase string, m *meshctl, f *fleet, sees func(proxy, service int) bool) (*changes, error) {
	return b.changesSeen(ctx, phase, m, f, xdswire.EndpointType, sees, func(int) (int, error) {
		b.changed++
		service := b.changed * 7 % b.services
		return service, b.mesh.writeSlice(b.config, service, b.changed)
	})
}

// meshChange changes a setting of all clusters, and one endpoint at the same time.
func (b *benchmark) meshChange(ctx context.Context, what string, large *benchmark, m *meshctl, f *fleet, sees func(proxy, service int) bool) error {
	quiet := b.report.value(what + ": one endpoint changes: the last proxy has it")
	var all, late []float64
	for round := range b.rounds {
		if _, err := m.settled(ctx); err != nil {
			return err
		}
		f.drain()
		m.phase(what + " mesh")
		start := time.Now()
		if err := writeMeshConfig(large.config, fmt.Sprintf("connectTimeout: %ds", 11+round)); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // until the change is being generated
		large.changed++
		service := large.changed * 7 % large.services
		moved := time.Now()
		if err := large.mesh.writeSlice(large.config, service, large.changed); err != nil {
			return err
		}
		clusters, endpoints := make(map[int]time.Time), make(map[int]time.Time)
		need := f.size()
		for p := range f.size() {
			if sees(p, service) {
				need++
			}
		}
		err := f.watch(ctx, func(e event) int {
			switch {
			case e.typ == xdswire.ClusterType && clusters[e.proxy].IsZero():
				clusters[e.proxy] = e.at
			case e.typ == xdswire.EndpointType && e.has(large.mesh.cluster(service)) && sees(e.proxy, service) && endpoints[e.proxy].IsZero():
				endpoints[e.proxy] = e.at
			}
			return need - len(clusters) - len(endpoints)
		})
		if err != nil {
			return err
		}
		all = append(all, latest(clusters).Sub(start).Seconds())
		late = append(late, latest(endpoints).Sub(moved).Seconds()-quiet)
	}
	m.phase("")
	b.report.add(what+": MeshConfig changes all clusters: the last proxy has it", median(all), "seconds", 2.5)
	b.report.add(what+": an endpoint that changes meanwhile is late by", max(0, median(late)), "seconds", 0.2)
	return nil
}

func latest(times map[int]time.Time) time.Time {
	return slices.MaxFunc(slices.Collect(maps.Values(times)), time.Time.Compare)
}

func writeMeshConfig(dir, text string) error {
	return replace(filepath.Join(dir, "mesh.yaml"), `apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: `+mesh.DefaultSystemNamespace+`}
data:
  mesh: |
    `+text+"\n")
}

// writeSidecars gives each namespace a Sidecar that sees a few namespaces.
func writeSidecars(_ *benchmark, dir string) error {
	var text strings.Builder
	for i := range scaleNamespaces {
		var hosts []string
		for j := range sidecarReach {
			hosts = append(hosts, fmt.Sprintf("ns-%d/*", (i+j)%scaleNamespaces))
		}
		fmt.Fprintf(&text, `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: ns-%d}
spec: {egress: [{hosts: [%s]}]}
`, i, strings.Join(hosts, ", "))
	}
	return replace(filepath.Join(dir, "sidecars.yaml"), text.String())
}

// writePrivateServices gives each namespace a Service that only it sees.
func writePrivateServices(_ *benchmark, dir string) error {
	private := services{namespaces: scaleNamespaces, endpoints: scaleEndpoints}
	var text strings.Builder
	for i := scaleServices; i < scaleServices+scaleNamespaces; i++ {
		service := strings.Replace(private.serviceText(i), "metadata:\n", "metadata:\n  annotations: {networking.istio.io/exportTo: .}\n", 1)
		text.WriteString(service + "---\n" + private.sliceText(i, 0) + "---\n")
	}
	return replace(filepath.Join(dir, "private.yaml"), text.String())
}

// writeLarge writes like write, but several Services to a file, as a directory may have at
// most 10,000 files.
func (s services) writeLarge(dir string, first, end int) error {
	const each = 100
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var text strings.Builder
	for i := first; i < end; i++ {
		if err := s.writeSlice(dir, i, 0); err != nil {
			return err
		}
		text.WriteString(s.serviceText(i) + "---\n")
		if (i+1)%each != 0 && i+1 < end {
			continue
		}
		if err := replace(serviceFile(dir, i), text.String()); err != nil {
			return err
		}
		text.Reset()
	}
	return nil
}

// clusterAdded adds the last of many clusters, each with its own Services.
func (b *benchmark) clusterAdded(ctx context.Context) (err error) {
	const each = scaleServices / scaleClusters
	root := filepath.Join(b.dir, "clusters")
	large := b.large(filepath.Join("clusters", "0"))
	var args []string
	for c := range scaleClusters {
		dir := filepath.Join(root, fmt.Sprint(c))
		if c == scaleClusters-1 {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			dir = filepath.Join(root, "added")
		}
		if err := large.mesh.writeLarge(dir, c*each, (c+1)*each); err != nil {
			return err
		}
		if c > 0 {
			args = append(args, "--remote-dir", fmt.Sprintf("cluster-%d=%s", c, filepath.Join(root, fmt.Sprint(c))))
		}
	}
	m, err := large.serve(ctx, args...)
	if err != nil {
		return err
	}
	defer m.end(&err)
	f := large.residents(m)
	defer f.close()
	f.grow(ctx, 100)
	if _, err := f.all(ctx, complete); err != nil {
		return err
	}
	what := fmt.Sprintf("scale, %d clusters: one is added, 100 proxies: ", scaleClusters)
	var times, cpu, generated []float64
	present, absent := filepath.Join(root, fmt.Sprint(scaleClusters-1), "added"), filepath.Join(root, "added")
	last := large.mesh.cluster(scaleServices - 1)
	m.phase("scale clusters")
	for range b.rounds {
		before, err := m.counters()
		if err != nil {
			return err
		}
		idle, err := m.settled(ctx)
		if err != nil {
			return err
		}
		f.drain()
		start := time.Now()
		if err := os.Rename(absent, present); err != nil {
			return err
		}
		at, err := f.all(ctx, func(e event) bool { return e.typ == xdswire.ClusterType && e.has(last) })
		if err != nil {
			return err
		}
		used, err := m.settled(ctx)
		if err != nil {
			return err
		}
		after, err := m.counters()
		if err != nil {
			return err
		}
		times, cpu = append(times, at[len(at)-1].Sub(start).Seconds()), append(cpu, used.cpu-idle.cpu)
		generated = append(generated, after["meshctl_xds_generated_total"]-before["meshctl_xds_generated_total"])
		f.drain()
		if err := os.Rename(present, absent); err != nil {
			return err
		}
		if _, err := f.all(ctx, func(e event) bool { return e.typ == xdswire.ClusterType }); err != nil {
			return err
		}
	}
	m.phase("")
	b.report.add(what+"the last has its clusters", median(times), "seconds", 0.3)
	b.report.add(what+"server CPU", median(cpu), "seconds", 0)
	b.report.add(what+"resources generated", median(generated), "count", 0)
	return nil
}

// manyPods measures a mesh with a pod for each of many endpoints.
func (b *benchmark) manyPods(ctx context.Context) (err error) {
	large := b.large("pods")
	large.services = scalePods / scaleEndpoints
	if err := large.mesh.writeLarge(large.config, 0, large.services); err != nil {
		return err
	}
	for i := range large.services {
		if err := large.writePods(i); err != nil {
			return err
		}
	}
	m, err := large.serve(ctx)
	if err != nil {
		return err
	}
	defer m.end(&err)
	f := large.residents(m)
	defer f.close()
	f.grow(ctx, 1)
	if _, err := f.all(ctx, complete); err != nil {
		return err
	}
	used, err := m.settled(ctx)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("scale, %d pods: ", scalePods)
	b.report.add(what+"start until ready", m.ready.Seconds(), "seconds", 0)
	b.report.add(what+"RSS", used.rss, "bytes", 900e6)
	before, err := m.counters()
	if err != nil {
		return err
	}
	c, err := large.moveEndpointsSeen(ctx, "scale pods", m, f, seesAll)
	if err != nil {
		return err
	}
	after, err := m.counters()
	if err != nil {
		return err
	}
	const built = "pilot_pushcontext_init_seconds"
	joined := (after[built+"_sum"] - before[built+"_sum"]) / (after[built+"_count"] - before[built+"_count"])
	b.report.add(what+"one endpoint changes: the snapshot with it, mean", joined, "seconds", 1e-3)
	b.report.add(what+"one endpoint changes: one proxy has it", median(c.last), "seconds", 0)
	return nil
}

// writePods writes the pods of a Service's endpoints.
func (b *benchmark) writePods(service int) error {
	var text strings.Builder
	for e := range scaleEndpoints {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata: {name: svc-%[1]d-%[2]d, namespace: %[3]s, labels: {app: svc-%[1]d, version: v1}}
spec: {serviceAccountName: svc-%[1]d, nodeName: node-%[4]d}
status: {phase: Running, podIP: 10.%[5]d.%[6]d.%[7]d}
`, service, e, b.mesh.namespace(service), service%100, 1+service/250, service%250, e+1)
	}
	return replace(filepath.Join(b.config, fmt.Sprintf("pods-%d.yaml", service)), text.String())
}
