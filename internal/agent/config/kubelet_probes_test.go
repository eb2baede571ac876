package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestKubeletProbes: the probes of the injector, with the defaults of Kubernetes.
func TestKubeletProbes(t *testing.T) {
	cfg := resolve(t, Flags{InstanceIP: "127.77.0.10"}, `ISTIO_KUBE_APP_PROBERS={
		"/app-health/web/readyz": {"httpGet": {"path": "ready?all=1", "port": 8080, "scheme": "HTTPS",
			"httpHeaders": [{"name": "X-Key", "value": "a"}, {"name": "Host", "value": "app.test"}]}, "timeoutSeconds": 7},
		"/app-health/web/livez": {"tcpSocket": {"port": "8081"}},
		"/app-health/db/startupz": {"grpc": {"port": 9000, "service": "db"}},
		"/app-lifecycle/web/prestopz": {"httpGet": {"port": 8080}}}`)
	var got []string
	for _, path := range slices.Sorted(maps.Keys(cfg.KubeletProbes)) {
		p := cfg.KubeletProbes[path]
		got = append(got, fmt.Sprint(path, " ", p.Timeout, " ", p.URL.String(), " ", p.Check != nil, " ", p.Header))
	}
	want := []string{
		"/app-health/db/startupz 1s  true map[]",
		"/app-health/web/livez 1s  true map[]",
		"/app-health/web/readyz 7s https://127.77.0.10:8080/ready?all=1 false map[Host:[app.test] X-Key:[a]]",
		"/app-lifecycle/web/prestopz 10m0s http://127.77.0.10:8080/ false map[]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, p := range []string{"/app-health/web/livez", "/app-health/db/startupz"} {
		if err := cfg.KubeletProbes[p].Check(t.Context()); err == nil || !strings.Contains(err.Error(), "127.77.0.10:") {
			t.Errorf("%s: %v, want the address of the pod", p, err)
		}
	}
	if cfg := resolve(t, Flags{}); cfg.KubeletProbes != nil {
		t.Error("probes without the variable")
	}
}

// TestProbesAtLoopback: where Envoy passes connections to the loopback address, probes go there, too.
func TestProbesAtLoopback(t *testing.T) {
	const probers = `ISTIO_KUBE_APP_PROBERS={"/app-health/a/livez": {"httpGet": {"port": 80}}, "/app-health/a/readyz": {"httpGet": {"port": 80, "host": "127.77.0.11"}}}`
	for variable, want := range map[string]string{"true": "127.0.0.1:80", "false": "127.77.0.10:80", "": "127.77.0.10:80"} {
		cfg := resolve(t, Flags{InstanceIP: "127.77.0.10"}, probers, "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION="+variable)
		if got := cfg.KubeletProbes["/app-health/a/livez"].URL.Host; got != want {
			t.Errorf("%q: probe at %s, want %s", variable, got, want)
		}
		if got := cfg.KubeletProbes["/app-health/a/readyz"].URL.Host; got != "127.77.0.11:80" {
			t.Errorf("%q: probe of a host at %s", variable, got)
		}
	}
	_, _, err := Resolve(Input{Environ: append(base(), probers, "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION=maybe")})
	if err == nil || !strings.Contains(err.Error(), "is neither true nor false") {
		t.Errorf("got %v", err)
	}
}

// TestNoStatusPort: with port 0, the agent serves its status to its own machine.
func TestNoStatusPort(t *testing.T) {
	for name, in := range map[string]Input{
		"annotation":  {Environ: base(), PodAnnotations: []byte(`status.sidecar.istio.io/port="0"`)},
		"ProxyConfig": {Environ: append(base(), `PROXY_CONFIG={"statusPort":0}`)},
	} {
		cfg, _, err := Resolve(in)
		if err != nil || cfg.StatusPort != 15020 || !cfg.StatusAddress.IsLoopback() || cfg.Listen.IsLoopback() {
			t.Errorf("%s: %v, status at %v:%d", name, err, cfg.StatusAddress, cfg.StatusPort)
		}
	}
	if cfg := resolve(t, Flags{}); cfg.StatusAddress != cfg.Listen {
		t.Errorf("status at %v, want %v", cfg.StatusAddress, cfg.Listen)
	}
}

func TestKubeletProbesRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`[]`: "ISTIO_KUBE_APP_PROBERS: ",
		`{"/app-health/../readyz/x": {"tcpSocket": {"port": 1}}}`:                             `path "/app-health/../readyz/x"`,
		`{"/healthz/ready": {"tcpSocket": {"port": 1}}}`:                                      `path "/healthz/ready"`,
		`{"/app-health/a/livez": {}}`:                                                         "/app-health/a/livez in ISTIO_KUBE_APP_PROBERS has no check",
		`{"/app-health/a/livez": {"exec": {"command": ["a"]}}}`:                               "has no check",
		`{"/app-health/a/livez": {"tcpSocket": {"port": "http"}}}`:                            "ISTIO_KUBE_APP_PROBERS: ",
		`{"/app-health/a/livez": {"tcpSocket": {"port": 70000}}}`:                             "tcpSocket.port of /app-health/a/livez in ISTIO_KUBE_APP_PROBERS is 70000",
		`{"/app-health/a/livez": {"tcpSocket": {"port": 1}, "timeoutSeconds": -1}}`:           "timeoutSeconds of /app-health/a/livez",
		`{"/app-health/a/livez": {"httpGet": {"port": 1, "path": "//b"}}}`:                    "httpGet.path of /app-health/a/livez",
		`{"/app-health/a/livez": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}}`: `"a b" is not the name of a header`,
		`{"/app-health/a/livez": {"httpGet": {"port": 1, "scheme": "file"}}}`:                 "httpGet.scheme",
		`{"/app-health/a/livez": {"httpGet": {"port": 1, "host": "a b"}}}`:                    "httpGet.host",
		`{` + manyProbers(maxProbers+1) + `}`:                                                 "at most 256",
	} {
		_, _, err := Resolve(Input{Environ: append(base(), "ISTIO_KUBE_APP_PROBERS="+text)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: got %v, want %q", text, err, want)
		}
	}
}

func manyProbers(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`"/app-health/c%d/livez": {"tcpSocket": {"port": 1}}`, i))
	}
	return strings.Join(out, ",")
}

// TestScrapes: the variable of the injector has precedence over annotations.
func TestScrapes(t *testing.T) {
	for name, tc := range map[string]struct {
		env, annotations string
		want             []string
	}{
		"none":                {},
		"variable":            {`{"scrape":"true","path":"/m?a=b","port":"8080"}`, "", []string{"http://127.0.0.1:8080/m?a=b"}},
		"defaults":            {`{"scrape":"","path":"","port":""}`, "", []string{"http://127.0.0.1:80/metrics"}},
		"several":             {`[{"port":"1"},{"port":"2","path":"b"},{"scrape":"false"}]`, "", []string{"http://127.0.0.1:1/metrics", "http://127.0.0.1:2/b"}},
		"targets":             {`{"targets":[{"port":"1","path":"/a"},{"port":"2","path":""}]}`, "", []string{"http://127.0.0.1:1/a", "http://127.0.0.1:2/metrics"}},
		"no targets":          {`{"scrape":"false","targets":[{"port":"1","path":"/a"}]}`, "", nil},
		"annotated targets":   {"", "prometheus.istio.io/scrape-targets=\"9:/a?b=c, 10\"\nprometheus.io/port=\"8\"", []string{"http://127.0.0.1:9/a?b=c", "http://127.0.0.1:10/metrics"}},
		"not":                 {`{"scrape":"false","port":"8080"}`, "", nil},
		"annotations":         {"", "prometheus.io/scrape=\"true\"\nprometheus.io/port=\"9\"", []string{"http://127.0.0.1:9/metrics"}},
		"not annotated":       {"", `prometheus.io/port="9"`, nil},
		"injected":            {"", "prometheus.io/scrape=\"true\"\nprometheus.io/port=\"15020\"", nil},
		"variable first":      {`{"port":"8080"}`, "prometheus.io/scrape=\"true\"\nprometheus.io/port=\"9\"", []string{"http://127.0.0.1:8080/metrics"}},
		"separate":            {`{"port":"8080"}`, `prometheus.istio.io/merge-metrics="false"`, nil},
		"separate, annotated": {"", "prometheus.istio.io/merge-metrics=\"false\"\nprometheus.io/scrape=\"true\"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _, err := Resolve(Input{
				Environ: append(base(), "ISTIO_PROMETHEUS_ANNOTATIONS="+tc.env), PodAnnotations: []byte(tc.annotations),
			})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, u := range cfg.Scrapes {
				got = append(got, u.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for text, want := range map[string]string{
		`{`:                              "ISTIO_PROMETHEUS_ANNOTATIONS: ",
		`[{]`:                            "ISTIO_PROMETHEUS_ANNOTATIONS: ",
		`{"port":"http"}`:                `port "http" is not a port`,
		`{"port":"15020"}`:               "port 15020 is the proxy's",
		`{"port":"15090"}`:               "port 15090 is the proxy's",
		`{"targets":[{"port":"15090"}]}`: "port 15090 is the proxy's",
		`{"port":"1","path":"//a"}`:      `path "//a"`,
		`{"port":"1","path":"/%zz"}`:     `path "/%zz"`,
		"[" + strings.Repeat(`{"port":"1"},`, 20) + "{}]": "at most 16",
	} {
		_, _, err := Resolve(Input{Environ: append(base(), "ISTIO_PROMETHEUS_ANNOTATIONS="+text)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %q", text, err, want)
		}
	}
}

// FuzzStatus: whatever injectors and annotations hold, the agent calls only the application.
func FuzzStatus(f *testing.F) {
	f.Add(`{"/app-health/a/livez":{"httpGet":{"path":"/x","port":"80"},"timeoutSeconds":3}}`, `{"scrape":"true","port":"9","path":"/m"}`, []byte(`prometheus.io/scrape="true"`))
	f.Add(`{"/app-health/a/readyz":{"grpc":{"port":1}}}`, `[{"port":"1"}]`, []byte("a=\n"))
	f.Add(`{"/app-lifecycle/a/prestopz":{"tcpSocket":{"port":1}}}`, ``, []byte(`prometheus.io/path="//169.254.169.254/"`))
	f.Fuzz(func(t *testing.T, probers, scrapes string, annotations []byte) {
		cfg, _, err := Resolve(Input{
			Environ:        append(base(), "ISTIO_KUBE_APP_PROBERS="+probers, "ISTIO_PROMETHEUS_ANNOTATIONS="+scrapes),
			PodAnnotations: annotations,
		})
		if err != nil {
			return
		}
		for _, u := range cfg.Scrapes {
			if u.Hostname() != "127.0.0.1" || u.Scheme != "http" || u.User != nil {
				t.Errorf("scrapes %s", u.String())
			}
		}
		for path, p := range cfg.KubeletProbes {
			if p.Timeout <= 0 || p.Check == nil && (p.URL.Host == "" || p.URL.User != nil) || !proberPath.MatchString(path) {
				t.Errorf("%s: %v", path, p)
			}
		}
	})
}
