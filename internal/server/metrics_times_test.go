package server

import (
	"strconv"
	"strings"
	"testing"
)

// pilot returns the metrics with Istio's names.
func pilot(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	out := make(map[string]float64)
	for line := range strings.Lines(metricsPage(t, s)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil && strings.HasPrefix(name, "pilot_") {
			out[name] = v
		}
	}
	return out
}

// TestTimesUnderIstiosNames: each push to two proxies counts once.
func TestTimesUnderIstiosNames(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "a.yaml", serviceYAML(1))
		write(t, dir, "b.yaml", sliceYAML(1, "10.1.0.1"))
	})
	first, second := connect(t, s, "first"), connect(t, s, "second")
	first.subscribeAll(t)
	second.subscribeAll(t)
	var before map[string]float64
	waitFor(t, "what was asked for to be written", func() bool {
		before = pilot(t, s)
		return before[`pilot_xds_send_time_count{type="rds"}`] == 2
	})
	for name, want := range map[string]float64{
		`pilot_push_triggers{type="proxyrequest"}`:              8,
		`pilot_xds_push_time_count{type="eds"}`:                 2,
		`pilot_xds_config_size_bytes_count{type="cds"}`:         2,
		`pilot_proxy_convergence_time_count`:                    0,
		`pilot_proxy_queue_time_count`:                          0,
		`pilot_total_xds_internal_errors`:                       0,
		`pilot_xds_write_timeout`:                               0,
		`pilot_sds_certificate_errors_total`:                    0,
		`pilot_xds_config_size_bytes_bucket{type="cds",le="1"}`: 0,
	} {
		if got, there := before[name]; !there || got != want {
			t.Errorf("before: %s is %v (%v), want %v", name, got, there, want)
		}
	}

	write(t, dir, "b.yaml", sliceYAML(1, "10.1.0.1", "10.1.0.2"))
	first.next(t)
	second.next(t)
	grown := func(name string) float64 { return pilot(t, s)[name] - before[name] }
	waitFor(t, "both to be written", func() bool { return grown(`pilot_xds_send_time_count{type="eds"}`) == 2 })
	for name, want := range map[string]float64{
		`pilot_push_triggers{type="endpoint"}`:          1,
		`pilot_push_triggers{type="proxyrequest"}`:      0,
		`pilot_xds_push_time_count{type="eds"}`:         2,
		`pilot_xds_push_time_count{type="cds"}`:         0,
		`pilot_xds_config_size_bytes_count{type="eds"}`: 2,
		`pilot_proxy_queue_time_count`:                  2,
		`pilot_debounce_time_count`:                     1,
		`pilot_pushcontext_init_seconds_count`:          1,
	} {
		if got := grown(name); got != want {
			t.Errorf("%s grew by %v, want %v", name, got, want)
		}
	}
	waitFor(t, "both to have everything", func() bool { return grown("pilot_proxy_convergence_time_count") == 2 })
	for _, name := range []string{"pilot_proxy_convergence_time", "pilot_proxy_queue_time", "pilot_debounce_time"} {
		if sum := pilot(t, s)[name+"_sum"]; sum <= 0 || sum > patience.Seconds() {
			t.Errorf("%s_sum is %v s", name, sum)
		}
	}
}
