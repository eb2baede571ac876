package servecmd

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/server/tracing"
)

// tracingOptions are the flags of serve about traces.
type tracingOptions struct{ endpoint string }

func (o *tracingOptions) bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.endpoint, "otlp-endpoint", "", "`URL` of an OpenTelemetry collector that is sent a trace of each change by OTLP over HTTP, as in http://127.0.0.1:4318 (default $OTEL_EXPORTER_OTLP_ENDPOINT; without any nothing is traced)")
}

// maxTracingRoots bounds the file of roots for the collector, in bytes.
const maxTracingRoots = 4 << 20

// otlpTimeout bounds a request to the collector.
const otlpTimeout = 10 * time.Second

// tracer makes what sends traces; nil when nothing is traced.
func (o *tracingOptions) tracer(ctx context.Context, env *cli.Env, replica string, log *slog.Logger) (*tracing.Tracer, error) {
	endpoint, err := o.url(env)
	if endpoint == nil || err != nil {
		return nil, err
	}
	var config *tls.Config
	if roots := env.FirstVariable("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"); roots != "" && endpoint.Scheme == "https" {
		pem, err := files.Read(roots, maxTracingRoots)
		if err == nil {
			config, err = dial.TLSConfig(pem, endpoint.Hostname())
		}
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
	}
	log.Info("tracing changes", "endpoint", endpoint.Redacted())
	return tracing.New(ctx, tracing.Config{
		Endpoint: endpoint.String(), Client: dial.HTTPClient(otlpTimeout, config),
		Replica: replica, Version: cli.CurrentBuild().Version, Log: log,
	})
}

// url is where traces are sent, with its path; nil when nothing is traced. The
// variables are those of the OpenTelemetry specification.
func (o *tracingOptions) url(env *cli.Env) (*url.URL, error) {
	off := strings.EqualFold(env.FirstVariable("OTEL_SDK_DISABLED"), "true") || env.FirstVariable("OTEL_TRACES_EXPORTER") == "none"
	text, name := o.endpoint, "--otlp-endpoint"
	whole := false // the URL has its path
	if text == "" && !off {
		text, name = env.FirstVariable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
		whole = text != ""
	}
	if text == "" && !off {
		text, name = env.FirstVariable("OTEL_EXPORTER_OTLP_ENDPOINT"), "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, cli.Usagef("%s: want the URL of a collector, as in http://127.0.0.1:4318", name) // it may hold a password
	}
	if !whole && !strings.HasSuffix(u.Path, "/v1/traces") {
		u.Path = strings.TrimSuffix(u.Path, "/") + "/v1/traces"
	}
	return u, nil
}
