package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/jwks"
)

const (
	// analysisDelay is the time from a change to the checks of the mesh, which also cover
	// later changes.
	analysisDelay = 5 * time.Second
	// analysisShare bounds the time of checks: after a round there is a pause of so many
	// times its duration.
	analysisShare = 50
	// maxLoggedFindings is the number of new findings of one round that are logged.
	maxLoggedFindings = 16
)

// runAnalysis checks the mesh after its changes until ctx ends. It logs each finding once.
func (s *Server) runAnalysis(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(analysisDelay):
		}
		start := s.cfg.Now()
		found, err := s.analyze(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		s.noteFindings(found)
		pause.Reset(analysisShare * s.cfg.Now().Sub(start))
	}
}

// analyze checks the mesh. It fails only if ctx ends.
func (s *Server) analyze(ctx context.Context) ([]analyze.Finding, error) {
	c, err := s.registry.Contents(ctx)
	if err != nil {
		return nil, err
	}
	faults := jwks.Faults(s.keySets.Status())
	keySet := func(_ mesh.ClusterID, source snapshot.KeySource) (string, bool) {
		fault, kept := faults(source)
		return oneLine(fault), kept
	}
	return analyze.Check(c, analyze.Options{Now: s.cfg.Now(), SecretsRead: s.secretsRead, KeySet: keySet}), nil
}

// analysisPage makes /debug/analysis.
func (s *Server) analysisPage(ctx context.Context, _ debug.Query) (any, error) {
	found, err := s.analyze(ctx)
	return analyze.Reports(found), err
}

// secretsRead reports whether the Secrets of a namespace are read.
func (s *Server) secretsRead(namespace string) bool {
	return s.cfg.ConfigDir != "" || slices.Contains(s.cfg.SecretNamespaces, "*") || slices.Contains(s.cfg.SecretNamespaces, namespace)
}

// knownFaults are the findings of the last round, without remarks. unlogged are those that
// only the checks find.
type knownFaults struct {
	unlogged []analyze.Report
	all      int
}

// noteFindings keeps the findings for status pages, and logs those that came and went.
func (s *Server) noteFindings(found []analyze.Finding) {
	found = slices.DeleteFunc(found, func(f analyze.Finding) bool { return !f.Severity().AtLeast(codes.Warning) })
	now := &knownFaults{all: len(found)}
	now.unlogged = analyze.Reports(slices.DeleteFunc(found, func(f analyze.Finding) bool { return f.Logged }))
	before := s.findings.Swap(now)
	log := s.cfg.log(logRegistry)
	came := differences(now.unlogged, before.unlogged)
	for _, r := range came[:min(len(came), maxLoggedFindings)] {
		log.Warn("fault of the configuration", "code", r.Code, "name", r.Name, "object", r.Origin, "at", r.Reference, "fault", r.Text())
	}
	if more := len(came) - maxLoggedFindings; more > 0 {
		log.Warn("more faults of the configuration; to show them: meshctl x internal-debug analysis --all", "more", more)
	}
	gone := differences(before.unlogged, now.unlogged)
	for _, r := range gone[:min(len(gone), maxLoggedFindings)] {
		log.Info("fault of the configuration is gone", "code", r.Code, "name", r.Name, "object", r.Origin, "fault", r.Text())
	}
}

// differences returns the findings that others lacks. The lines of objects may move.
func differences(list, others []analyze.Report) []analyze.Report {
	known := make(map[analyze.Report]bool, len(others))
	for _, r := range others {
		r.Reference = ""
		known[r] = true
	}
	var out []analyze.Report
	for _, r := range list {
		at := r.Reference
		if r.Reference = ""; !known[r] {
			r.Reference = at
			out = append(out, r)
		}
	}
	return out
}

// analysisHint returns a remark for readers of proxies, none without findings.
func (s *Server) analysisHint() []string {
	if n := s.findings.Load().all; n > 0 {
		return []string{fmt.Sprintf("The configuration has faults, %d in all; to show them: meshctl x internal-debug analysis --all", n)}
	}
	return nil
}
