package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/token"
	"github.com/meshctl/meshctl/test/harness"
)

// TestDiagnose: beside an agent that runs, its ports and its socket are no fault. The agent
// explains by itself why it has no certificate.
func TestDiagnose(t *testing.T) {
	a := newAgentTest(t, "sidecar", "run")
	issuer, err := token.GenerateIssuer("https://issuer.test")
	check(t, err)
	raw, err := issuer.Create(token.Claims{
		Namespace: a.cfg.Identity.Namespace, ServiceAccount: a.cfg.Identity.ServiceAccount, Audiences: []string{"istio-ca"}, TTL: time.Hour,
	}, time.Now())
	check(t, err)
	check(t, os.WriteFile(a.cfg.TokenFile, []byte(raw), 0o600))
	a.start(t)
	a.waitReady(t)
	var log harness.LogBuffer
	opts := Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now}

	valid := filepath.Join(t.TempDir(), "envoy")
	check(t, os.WriteFile(valid, []byte("#!/bin/sh\ntest \"$2\" = validate && test -s \"$4\"\n"), 0o700))
	a.cfg.EnvoyPath = valid
	for _, f := range Diagnose(t.Context(), a.cfg, opts) {
		if f.Cause != "" || f.Check == "ports" {
			t.Errorf("%+v", f)
		}
	}
	check(t, os.WriteFile(valid, []byte("#!/bin/sh\necho no such filter >&2\nexit 1\n"), 0o700))
	all := Diagnose(t.Context(), a.cfg, opts)
	if last := all[len(all)-1]; !strings.Contains(last.Cause, "envoy refuses its bootstrap: exit status 1: no such filter") {
		t.Errorf("%+v", last)
	}

	a.cfg.TokenFile = "none"
	failed := make(chan struct{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	explainFailure(ended, &a.cfg, opts, failed) // the agent ends, and nothing has failed
	close(failed)
	explainFailure(t.Context(), &a.cfg, opts, failed)
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `check=token cause="there is no token file none"`) {
		t.Errorf("log: %s", got)
	}
}
