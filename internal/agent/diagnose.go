package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/doctor"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/process"
	"github.com/meshctl/meshctl/internal/serving"
)

// tokenAudience is the audience that control planes expect by default.
const tokenAudience = "istio-ca"

// runsTimeout bounds the question whether an agent runs.
const runsTimeout = 2 * time.Second

// Diagnose examines the workload of an agent, which may be running.
func Diagnose(ctx context.Context, cfg config.Config, opts Options) []doctor.Finding {
	c := examination(&cfg, opts)
	c.Directories = func() error { return checkPlaces(&cfg) }
	if !cfg.NoEnvoy {
		c.Bootstrap = func(ctx context.Context) error { return validateBootstrap(ctx, &cfg, opts.Environ) }
	}
	if !runs(ctx, &cfg) {
		c.Ports = ports(&cfg)
	}
	return c.Examine(ctx)
}

// explainFailure logs why the first request for a certificate fails, if it does.
func explainFailure(ctx context.Context, cfg *config.Config, opts Options, failed <-chan struct{}) {
	select {
	case <-failed:
	case <-ctx.Done():
		return
	}
	findings := examination(cfg, opts).Examine(ctx)
	if last := findings[len(findings)-1]; last.Cause != "" && ctx.Err() == nil {
		opts.Log.Error("found why there is no certificate", "check", last.Check, "cause", last.Cause, "fix", last.Fix)
	}
}

// examination returns the checks of the way to a certificate.
func examination(cfg *config.Config, opts Options) *doctor.Config {
	c := &doctor.Config{RootFile: cfg.CARootFile, Addr: cfg.CA.Addr(), ServerName: cfg.CA.Name, Now: opts.Now}
	switch {
	case cfg.WorkloadSocket != "": // another SPIFFE agent has the certificate
	case cfg.CertFiles != nil:
		c.Files = func() error {
			_, err := cfg.CertFiles.Load(opts.Now())
			return err
		}
	default:
		client, current := authority(cfg), workloadcert.Current{}
		if cfg.ProvisionedFiles != nil {
			current.Certificate = cfg.ProvisionedFiles.Client(opts.Now())
		}
		if current.Certificate == nil {
			c.TokenFile, c.Audience = cfg.TokenFile, tokenAudience
			c.Namespace, c.ServiceAccount = cfg.Identity.Namespace, cfg.Identity.ServiceAccount
		}
		c.Sign = func(ctx context.Context) error {
			_, err := workloadcert.Request(ctx, client, cfg.Identity, cfg.SecretTTL, current, opts.Now())
			return err
		}
	}
	return c
}

// runs reports whether an agent with this configuration runs.
func runs(ctx context.Context, cfg *config.Config) bool {
	client := dial.HTTPClient(runsTimeout, nil)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+netip.AddrPortFrom(cfg.Local, cfg.StatusPort).String()+"/healthz/ready", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusServiceUnavailable
}

func ports(cfg *config.Config) []doctor.Port {
	all := []doctor.Port{{Addr: netip.AddrPortFrom(cfg.StatusAddress, cfg.StatusPort), Flag: "--status-port"}}
	if cfg.NoEnvoy {
		return all
	}
	return append(all,
		doctor.Port{Addr: netip.AddrPortFrom(cfg.Local, cfg.AdminPort), Flag: "--admin-port"},
		doctor.Port{Addr: netip.AddrPortFrom(cfg.Listen, cfg.ReadyPort), Flag: "--readiness-port"},
		doctor.Port{Addr: netip.AddrPortFrom(cfg.Listen, cfg.StatsPort), Flag: "--prometheus-port"})
}

// checkPlaces checks the directories of the agent and the place of its socket.
func checkPlaces(cfg *config.Config) error {
	if err := refuseDirectories(cfg); err != nil {
		return err
	}
	if _, err := serving.ProbeSocket(cfg.SDSSocket); err != nil && !errors.Is(err, serving.ErrInUse) {
		return err
	}
	return nil
}

// validateBootstrap lets Envoy check its bootstrap.
func validateBootstrap(ctx context.Context, cfg *config.Config, environ []string) (err error) {
	path, err := exec.LookPath(cfg.EnvoyPath)
	if err != nil {
		return fmt.Errorf("find envoy: %w; name it with --envoy", err)
	}
	file := cfg.CustomConfigFile
	if file == "" {
		var data []byte
		if data, err = bootstrap.Marshal(cfg.Config); err != nil {
			return err
		}
		var dir string
		if dir, err = os.MkdirTemp("", "meshctl-doctor-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		file = filepath.Join(dir, "bootstrap.json")
		if err := files.Write(file, data, files.Secret); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, path, "--mode", "validate", "-c", file, "-l", "error", "--allow-unknown-static-fields")
	cmd.Env = environ
	process.Isolate(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("envoy refuses its bootstrap: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
