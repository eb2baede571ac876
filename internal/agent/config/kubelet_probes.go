package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/agent/probe"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Variables and annotations that describe the application to the status port.
const (
	probersVariable = "ISTIO_KUBE_APP_PROBERS"
	scrapeVariable  = "ISTIO_PROMETHEUS_ANNOTATIONS"

	scrapeAnnotation = "prometheus.io/scrape"
	portAnnotation   = "prometheus.io/port"
	pathAnnotation   = "prometheus.io/path"
	// mergeAnnotation is "false" where the metrics of the application stay separate.
	mergeAnnotation = "prometheus.istio.io/merge-metrics"
)

// Bounds of the status port.
const (
	maxProbers       = 256              // three for each container
	lifecycleTimeout = 10 * time.Minute // of a hook, which may take its time
)

// proberPath matches the paths that the injector gives probes and hooks.
var proberPath = regexp.MustCompile(`^/(app-health/[^/]+/(livez|readyz|startupz)|app-lifecycle/[^/]+/(prestopz|poststartz))$`)

// kubeProber is a probe as the injector writes it, with the names of Kubernetes.
type kubeProber struct {
	HTTPGet *struct {
		Path, Host, Scheme string
		Port               json.Number
		HTTPHeaders        []struct{ Name, Value string }
	}
	TCPSocket *struct {
		Host string
		Port json.Number
	}
	GRPC *struct {
		Port    json.Number
		Service string
	}
	TimeoutSeconds int32
}

// kubeletProbes resolves the probes that the injector moved from the application to the
// agent.
func (r *resolver) kubeletProbes(cfg *Config) {
	text := r.lookup(probersVariable)
	if text == "" {
		return
	}
	var probers map[string]*kubeProber
	if err := json.Unmarshal([]byte(text), &probers); err != nil {
		r.errorf("%s: %w", probersVariable, err)
		return
	}
	if len(probers) > maxProbers {
		r.errorf("%s has %d probes, at most %d are allowed", probersVariable, len(probers), maxProbers)
		return
	}
	cfg.KubeletProbes = map[string]probe.Kubelet{}
	for _, path := range slices.Sorted(maps.Keys(probers)) {
		p := probers[path]
		if !proberPath.MatchString(path) {
			r.errorf("%s: path %q: want /app-health/CONTAINER/ with livez, readyz or startupz, or /app-lifecycle/CONTAINER/ with prestopz or poststartz", probersVariable, path)
			continue
		}
		if p != nil {
			cfg.KubeletProbes[path] = r.kubeletProbe(r.applicationAddress(cfg), path, p)
		}
	}
}

// applicationAddress returns the address at which probes without a host ask the application: the
// pod's, as the kubelet does, unless the application gets its connections at the loopback address.
func (r *resolver) applicationAddress(cfg *Config) netip.Addr {
	if text := r.lookup(mesh.VariableProbesAtLoopback); text != "" && r.boolean(setting{text, mesh.VariableProbesAtLoopback}) {
		return cfg.Local
	}
	return cfg.Node.IP
}

func (r *resolver) kubeletProbe(own netip.Addr, path string, p *kubeProber) probe.Kubelet {
	f := probeFields{r, fmt.Sprintf(" of %s in %s", path, probersVariable)}
	timeout := time.Second
	if p.TimeoutSeconds < 0 || p.TimeoutSeconds > maxProbeSeconds {
		r.errorf("timeoutSeconds%s is %d, want 0 (for the default) to %d", f.of, p.TimeoutSeconds, maxProbeSeconds)
	} else if p.TimeoutSeconds > 0 {
		timeout = time.Duration(p.TimeoutSeconds) * time.Second
	} else if path[len("/app-")] == 'l' {
		timeout = lifecycleTimeout
	}
	made := probe.Kubelet{Timeout: timeout}
	switch {
	case p.HTTPGet != nil:
		get := &networkingv1alpha3.HTTPHealthCheckConfig{
			Path: p.HTTPGet.Path, Host: p.HTTPGet.Host, Scheme: p.HTTPGet.Scheme, Port: portNumber(p.HTTPGet.Port),
		}
		for _, h := range p.HTTPGet.HTTPHeaders {
			get.HttpHeaders = append(get.HttpHeaders, &networkingv1alpha3.HTTPHeader{Name: h.Name, Value: h.Value})
		}
		made.URL, made.Header, _ = f.http(own, get)
	case p.TCPSocket != nil:
		made.Check = probe.TCP(f.target("tcpSocket", own, p.TCPSocket.Host, portNumber(p.TCPSocket.Port)))
	case p.GRPC != nil:
		made.Check = probe.GRPC(f.target("grpc", own, "", portNumber(p.GRPC.Port)), p.GRPC.Service)
	default:
		r.errorf("%s in %s has no check: want httpGet, tcpSocket or grpc", path, probersVariable)
	}
	return made
}

// portNumber returns 0, which is no port, for anything but a number.
func portNumber(n json.Number) uint32 {
	port, _ := strconv.ParseUint(n.String(), 10, 32)
	return uint32(port)
}
