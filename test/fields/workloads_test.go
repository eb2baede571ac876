//go:build !race

package fields

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/workload"
)

// workload adds the effects on workloads: on an injected pod and its agent, and on the files with
// which a virtual machine joins.
func (r *result) workload(t *testing.T) {
	t.Helper()
	var s inject.Settings
	for _, e := range r.events {
		switch o := e.Object.(type) {
		case *snapshot.MeshSettings:
			s.Mesh = o.Mesh
		case *snapshot.ProxyConfig:
			s.ProxyConfigs = append(s.ProxyConfigs, o)
		}
	}
	injector, err := inject.New(s)
	if err != nil {
		t.Fatal(err)
	}
	made, err := injector.Inject(t.Context(), pod(nil))
	if err != nil {
		t.Fatal(err)
	}
	environ := r.addPod(t, made.Object)
	r.addAgent(t, environ, r.podConfig)
	for _, o := range r.objects {
		if o.kind() == "WorkloadGroup" {
			r.addMachine(t, o)
		}
	}
}

// pod returns the pod of reviews, before injection.
func pod(annotations map[string]any) inject.Pod {
	return inject.Pod{
		Object: map[string]any{
			"metadata": map[string]any{"name": "reviews-1", "namespace": "shop", "labels": map[string]any{"app": "reviews"}, "annotations": annotations},
			"spec": map[string]any{"containers": []any{map[string]any{
				"name": "app", "image": "app:1", "ports": []any{map[string]any{"containerPort": 8080}},
				"readinessProbe": map[string]any{"httpGet": map[string]any{"path": "/ready", "port": 8080}},
			}}},
		},
		Workload: mesh.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "reviews"},
	}
}

// addPod adds an injected pod without PROXY_CONFIG, which addAgent adds, and returns the environment
// of its proxy.
func (r *result) addPod(t *testing.T, o map[string]any) []string {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var injected corev1.Pod
	if err := json.Unmarshal(text, &injected); err != nil {
		t.Fatal(err)
	}
	var environ []string
	for _, list := range [][]corev1.Container{injected.Spec.InitContainers, injected.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if c.Name == "istio-proxy" {
				for _, v := range c.Env {
					environ = append(environ, v.Name+"="+valueOf(v))
				}
				c.Env = slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "PROXY_CONFIG" })
			}
		}
	}
	if text, err = json.Marshal(injected); err != nil {
		t.Fatal(err)
	}
	r.generated[onWorkloads]["pod"] = string(text)
	return environ
}

// valueOf returns the value of a variable of the pod of reviews.
func valueOf(v corev1.EnvVar) string {
	if v.ValueFrom == nil {
		return v.Value
	}
	return map[string]string{
		"POD_NAME": "reviews-1", "POD_NAMESPACE": "shop", "INSTANCE_IP": "10.0.1.1", "HOST_IP": "10.0.0.9", "SERVICE_ACCOUNT": "reviews", "ISTIO_CPU_LIMIT": "2",
	}[v.Name]
}

// addAgent adds the configuration of an agent, without the copy of PROXY_CONFIG in the metadata of
// the node. given, if not empty, replaces PROXY_CONFIG.
func (r *result) addAgent(t *testing.T, environ []string, given string) {
	t.Helper()
	if given != "" {
		environ = slices.DeleteFunc(append(slices.Clone(environ), "PROXY_CONFIG="+given), func(v string) bool {
			return strings.HasPrefix(v, "ISTIO_META_INTERCEPTION_MODE=") || strings.HasPrefix(v, "ISTIO_META_MESH_ID=") // they override it
		})
	}
	cfg, warnings, err := config.Resolve(config.Input{
		Environ: environ, Interfaces: []netip.Addr{netip.MustParseAddr("10.0.1.1")}, Flags: config.Flags{Type: "sidecar", Domain: "shop.svc.cluster.local"}, Version: "1.0",
	})
	r.proxyConfig, _ = cfg.Metadata["PROXY_CONFIG"].(map[string]any)
	delete(cfg.Metadata, "PROXY_CONFIG")
	r.generated[onWorkloads]["agent"] = textOf(&cfg) + fmt.Sprint(err)
	for _, w := range warnings {
		w = strings.TrimPrefix(w, "PROXY_CONFIG: ")
		if name, rest, ok := strings.Cut(strings.TrimPrefix(w, "field "), " "); ok {
			r.warned = append(r.warned, problem{object: r.objects[len(r.objects)-1].id(), field: name, text: rest})
		}
	}
}

// textOf returns the configuration of an agent without functions.
func textOf(cfg *config.Config) string {
	var out strings.Builder
	if p := cfg.Probe; p != nil {
		fmt.Fprintf(&out, "%v %v %v %v %v\n", p.InitialDelay, p.Timeout, p.Period, p.SuccessThreshold, p.FailureThreshold)
	}
	for path, p := range cfg.KubeletProbes {
		p.Check = nil
		cfg.KubeletProbes[path] = p
	}
	fmt.Fprintf(&out, "%+v %+v %t\n", cfg.CertFiles, cfg.ProvisionedFiles, cfg.STS != nil)
	if cfg.DNS != nil {
		fmt.Fprintf(&out, "%+v\n", *cfg.DNS)
	}
	if cfg.Modules != nil {
		modules := *cfg.Modules
		modules.Now = nil
		fmt.Fprintf(&out, "%+v\n", modules)
	}
	cfg.Probe, cfg.DNS, cfg.Modules, cfg.STS, cfg.CertFiles, cfg.ProvisionedFiles = nil, nil, nil, nil, nil, nil
	fmt.Fprintf(&out, "%+v\n", *cfg)
	return out.String()
}

// addMachine adds the files with which a virtual machine of a WorkloadGroup joins.
func (r *result) addMachine(t *testing.T, o object) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	g, err := workload.ParseGroup(text, "shop")
	if err != nil {
		t.Fatal(err)
	}
	made, err := workload.Configure(g, workload.Input{Group: text, Cluster: "c1", Discovery: "istiod.example:15012", AutoRegister: true, Roots: []byte("roots"), Token: []byte("token")})
	r.generated[onWorkloads]["machine"] = fmt.Sprintf("%s %v", made, err)
}
