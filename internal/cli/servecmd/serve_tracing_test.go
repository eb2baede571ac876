package servecmd

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/cli"
)

func TestTracingURL(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		flag string
		vars map[string]string
		want string // URL, or part of the error
	}{
		{"", nil, ""},
		{"http://127.0.0.1:4318", nil, "http://127.0.0.1:4318/v1/traces"},
		{"https://collector:4318/otlp/", nil, "https://collector:4318/otlp/v1/traces"},
		{"http://a:1/v1/traces", nil, "http://a:1/v1/traces"},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "http://a:1/v1/traces"},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:1/x"}, "http://b:1/x"},
		{"http://c:1", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:1/x"}, "http://c:1/v1/traces"},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_SDK_DISABLED": "TRUE"}, ""},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_TRACES_EXPORTER": "none"}, ""},
		{"127.0.0.1:4318", nil, "--otlp-endpoint: want the URL"},
		{"ftp://a", nil, "--otlp-endpoint: want the URL"},
		{"http://user:secret@a:1", nil, "--otlp-endpoint: want the URL"},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "a:1"}, "OTEL_EXPORTER_OTLP_ENDPOINT: want the URL"},
	} {
		env := &cli.Env{LookupEnv: func(name string) (string, bool) { v, ok := tc.vars[name]; return v, ok }}
		u, err := (&tracingOptions{tc.flag}).url(env)
		got := ""
		switch {
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%q: the error tells a password: %v", tc.flag, err)
		case err != nil:
			got = err.Error()
		case u != nil:
			got = u.String()
		}
		if got != tc.want && (err == nil || !strings.HasPrefix(got, tc.want)) {
			t.Errorf("%q with %v: %s, want %s", tc.flag, tc.vars, got, tc.want)
		}
	}
}

func TestTracingRoots(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": "nothing.pem"}
	env := &cli.Env{LookupEnv: func(name string) (string, bool) { v, ok := vars[name]; return v, ok }}
	if _, err := (&tracingOptions{"https://a:1"}).tracer(t.Context(), env, "r", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "nothing.pem") {
		t.Errorf("roots that are not there: %v", err)
	}
	if tracer, err := (&tracingOptions{}).tracer(t.Context(), env, "r", slog.New(slog.DiscardHandler)); tracer != nil || err != nil {
		t.Errorf("without an endpoint: %v, %v", tracer, err)
	}
}
