package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/server/render/corpus"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// TestCorpusIsAccepted gives the mesh of each case of the corpus, one after another, to a
// running control plane. The real Envoys of the proxies that the case shows take every
// resource, and nothing stays warming.
func TestCorpusIsAccepted(t *testing.T) {
	cases, err := corpus.Cases("../../internal/server/render/testdata")
	if err != nil {
		t.Fatal(err)
	}
	dir, mesh := harness.ShortDir(t), t.TempDir()
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.Mkdir(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	files := filesOf(t, cases[0])
	plain, secure := controlPlane(t, dir, mesh, "--socket-dir", "/run")
	number := marker(20000)
	for _, w := range workloadsOf(t, cases) {
		t.Run(w.proxy.name+" "+w.ips, func(t *testing.T) {
			setCase(t, mesh, files, w, w.cases[0], number)
			work := harness.ShortDir(t)
			for _, name := range []string{"issuer", "ca"} {
				if err := os.Symlink(filepath.Join(dir, name), filepath.Join(work, name)); err != nil {
					t.Fatal(err)
				}
			}
			stop := w.proxy.start(t, work, secure, "INSTANCE_IP="+w.ips, "ISTIO_META_NETWORK=")
			defer stop()
			for _, c := range w.cases {
				t.Run(c.Name, func(t *testing.T) {
					number++
					setCase(t, mesh, files, w, c, number)
					takes(t, plain, number)
				})
			}
		})
	}
}

// marker is a port of services by which a proxy shows that it has the mesh of a case.
type marker int

// services returns two services: one that all namespaces see unless a Sidecar hides it, and
// one that selects the proxy.
func (m marker) services(p *proxy) string {
	const form = `
---
apiVersion: v1
kind: Service
metadata: {name: marker, namespace: %s, annotations: {networking.istio.io/exportTo: "*"}}
spec: {clusterIP: %s, selector: {app: %s}, ports: [{name: tcp, port: %d}]}
`
	return fmt.Sprintf(form, "marker", "10.96.255.1", "none", m) + fmt.Sprintf(form, p.namespace, "10.96.255.2", cmp.Or(p.labels["app"], "none"), m)
}

// isIn reports whether the answer of /clusters has a cluster of a service of the marker.
func (m marker) isIn(clusters string) bool {
	return strings.Contains(clusters, fmt.Sprintf("outbound|%d||marker", m)) || strings.Contains(clusters, fmt.Sprintf("inbound|%d||", m))
}

// filesOf returns a directory with the files that cases name in /etc/corpus, with the
// certificate of the Secret ca that all cases have.
func filesOf(t *testing.T, c *corpus.Case) string {
	t.Helper()
	dir := t.TempDir()
	for doc := range strings.SplitSeq(objectsOf(t, c)["c1"], "\n---\n") {
		var secret corev1.Secret
		if err := yaml.Unmarshal([]byte(doc), &secret); err != nil || secret.Kind != "Secret" || secret.Name != "ca" {
			continue
		}
		for name, key := range map[string]string{"c.pem": "tls.crt", "k.pem": "tls.key", "ca.pem": "ca.crt"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(secret.StringData[key]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// setCase makes the objects of a case, and of a marker for a proxy, the mesh.
func setCase(t *testing.T, mesh, files string, w *workload, c *corpus.Case, m marker) {
	t.Helper()
	objects := objectsOf(t, c)
	objects["c1"] += m.services(&w.proxy)
	for name, cluster := range map[string]string{"c1": "cluster1", "c2": "cluster2"} {
		file := filepath.Join(mesh, cluster, "mesh.yaml")
		if text := objects[name]; text != "" {
			replace(t, file, strings.NewReplacer("fromRegistry: c", "fromRegistry: cluster", "/etc/corpus", files).Replace(text))
		} else if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
}

// objectsOf returns the YAML of the clusters of a case.
func objectsOf(t *testing.T, c *corpus.Case) map[string]string {
	t.Helper()
	clusters, err := c.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, cluster := range clusters {
		text, err := os.ReadFile(filepath.Join(cluster.Dirs[0], "mesh.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		out[string(cluster.ID)] = string(text)
	}
	return out
}

// takes waits until the Envoy has all resources that the control plane sends to it,
// and none is warming. It fails when Envoy refuses one.
func takes(t *testing.T, plain string, m marker) {
	t.Helper()
	refused := func() {
		t.Helper()
		for line := range strings.SplitSeq(strings.TrimSpace(adminGet(t, admin, "/stats?filter=update_rejected|config_fail")), "\n") {
			if !strings.HasSuffix(line, ": 0") {
				_, _, faults := dumpOf(t, admin)
				t.Fatalf("Envoy counts %s\n%s", line, strings.Join(faults, "\n"))
			}
		}
	}
	eventually(t, "Envoy has the mesh of the case", func() error {
		refused()
		if !m.isIn(adminGet(t, admin, "/clusters")) {
			return errors.New("it has another")
		}
		return nil
	})
	eventually(t, "Envoy has what was sent", func() error {
		refused()
		node, got, faults := dumpOf(t, admin)
		faults = slices.DeleteFunc(faults, func(fault string) bool { // of an earlier case, and of a case without the secret
			return strings.HasSuffix(fault, isDraining) || fault == "secret kubernetes://missing is warming"
		})
		if len(faults) > 0 {
			return fmt.Errorf("not all is active: %s", strings.Join(faults, "\n"))
		}
		sent := sentTo(t, plain, node)
		// Listeners that drain keep their routes.
		got[xdswire.RouteType] = slices.DeleteFunc(got[xdswire.RouteType], func(name string) bool { return !slices.Contains(sent[xdswire.RouteType], name) })
		if diff := gocmp.Diff(sent, got, cmpopts.IgnoreMapEntries(func(_ string, list []string) bool { return len(list) == 0 })); diff != "" {
			return fmt.Errorf("names (-sent +config_dump):\n%s", diff)
		}
		return nil
	})
	refused()
}

// workload is a proxy and the cases that show it.
type workload struct {
	proxy proxy
	ips   string
	cases []*corpus.Case
}

// workloadsOf returns the proxies of cases. Two cases share one if its node differs only
// in labels, which come from the pod. Cases with modules of plugins have no proxy: Envoy refuses a
// plugin without its module.
func workloadsOf(t *testing.T, cases []*corpus.Case) []*workload {
	t.Helper()
	var out []*workload
	for _, c := range cases {
		if objects := objectsOf(t, c)["c1"]; strings.Contains(objects, "kind: WasmPlugin") || strings.Contains(objects, "{wasm: {") {
			continue
		}
		pods := podsOf(t, c)
		seen := map[string]bool{}
		for _, s := range c.Shows {
			pod, ok := pods[s.Proxy]
			if !ok || seen[s.Proxy] {
				continue // of another cluster, or a WorkloadEntry
			}
			seen[s.Proxy] = true
			w := &workload{proxy: proxy{pod.Name, "sidecar", pod.Namespace, cmp.Or(pod.Spec.ServiceAccountName, "default"), pod.Status.PodIP, pod.Labels}, ips: pod.Status.PodIP}
			if pod.Namespace == "edge" {
				w.proxy.kind = "router"
			}
			for _, ip := range pod.Status.PodIPs {
				if ip.IP != w.ips {
					w.ips += "," + ip.IP
				}
			}
			i := slices.IndexFunc(out, func(o *workload) bool {
				return o.proxy.name == w.proxy.name && o.proxy.account == w.proxy.account && o.ips == w.ips
			})
			if i < 0 {
				i, out = len(out), append(out, w)
			}
			out[i].cases = append(out[i].cases, c)
		}
	}
	return out
}

// podsOf returns the pods of the first cluster of a case.
func podsOf(t *testing.T, c *corpus.Case) map[string]*corev1.Pod {
	t.Helper()
	out := map[string]*corev1.Pod{}
	for doc := range strings.SplitSeq(objectsOf(t, c)["c1"], "\n---\n") {
		var pod corev1.Pod
		if err := yaml.Unmarshal([]byte(doc), &pod); err == nil && pod.Kind == "Pod" {
			out[pod.Name+"."+pod.Namespace] = &pod
		}
	}
	return out
}
