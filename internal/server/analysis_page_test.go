package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestFindingsAreLoggedOnce: serve logs each fault when it comes and when it is gone, and
// neither remarks nor what the registry logs.
func TestFindingsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	s := &Server{cfg: Config{Log: slog.New(slog.NewTextHandler(&text, nil))}}
	s.findings.Store(&knownFaults{})
	gateway := snapshot.Key{Kind: snapshot.KindGateway, Namespace: "shop", Name: "public"}
	fault := analyze.Finding{Code: codes.ReferencedResourceNotFound, Object: gateway, Place: snapshot.Place{File: "mesh.yaml", Line: 3}, Field: "spec.selector", Message: "selects no workload"}
	known := analyze.Finding{Code: codes.ConflictingGateways, Object: gateway, Message: "is not opened", Logged: true}
	remark := analyze.Finding{Code: codes.PortNameIsNotUnderNamingConvention, Message: "a port"}
	moved := fault
	moved.Place.Line = 30
	for _, round := range []struct {
		found []analyze.Finding
		want  string
		hints int
	}{
		{[]analyze.Finding{fault, known, remark}, `level=WARN msg="fault of the configuration" code=IST0101 name=ReferencedResourceNotFound object="Gateway shop/public" at=mesh.yaml:3 fault="spec.selector: selects no workload"`, 1},
		{[]analyze.Finding{moved, known}, "", 1},
		{[]analyze.Finding{remark}, `level=INFO msg="fault of the configuration is gone" code=IST0101 name=ReferencedResourceNotFound object="Gateway shop/public" fault="spec.selector: selects no workload"`, 0},
	} {
		text.Reset()
		s.noteFindings(round.found)
		_, got, _ := strings.Cut(strings.TrimSpace(text.String()), " ") // without the time
		if got != round.want {
			t.Errorf("got  %s\nwant %s", got, round.want)
		}
		if hints := s.analysisHint(); len(hints) != round.hints {
			t.Errorf("hints %q", hints)
		}
	}

	many := make([]analyze.Finding, maxLoggedFindings+3)
	for i := range many {
		many[i] = fault
		many[i].Message = strings.Repeat("x", i+1)
	}
	text.Reset()
	s.noteFindings(many)
	if got := text.String(); strings.Count(got, "\n") != maxLoggedFindings+1 || !strings.Contains(got, "more=3") {
		t.Errorf("got %s", got)
	}
}
