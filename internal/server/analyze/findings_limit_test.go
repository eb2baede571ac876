package analyze

import (
	"fmt"
	"testing"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestFindingsOfANamespaceAreLimited: a namespace has a limited number of findings, and one that
// counts the others. Other namespaces keep theirs.
func TestFindingsOfANamespaceAreLimited(t *testing.T) {
	t.Parallel()
	m := &checker{foundIn: make(map[string]int)}
	for i := range maxFindings + 5 {
		m.findKey(codes.SharedHost, snapshot.Key{Namespace: "tenant", Name: fmt.Sprint(i)}, "", "shares a host")
	}
	if f := m.findKey(codes.SharedHost, snapshot.Key{Namespace: "other", Name: "a"}, "", "shares a host"); f == nil {
		t.Error("another namespace has no finding")
	}
	// What is beyond the limit changes no other finding.
	refused := &snapshot.CreationFailure{Reason: "sidecar-injector denied the request: no", Owner: snapshot.Owner{Kind: "Deployment", Name: "a"}}
	m.refusedPods(refused, snapshot.Key{Namespace: "tenant", Name: "a"})
	v := &clusterView{checker: m}
	v.findIn(codes.Error, codes.SharedHost, &snapshot.Namespace{Meta: snapshot.Meta{Namespace: "tenant", Name: "b"}}, "fix", "", "shares a host")
	if f := m.found[len(m.found)-1]; f.Object.Namespace != "other" || f.Fix != "" || f.Level != "" {
		t.Errorf("a finding beyond the limit changes %v", f)
	}
	m.countLeftOut()
	if want := maxFindings + 2; len(m.found) != want {
		t.Errorf("there are %d findings, want %d", len(m.found), want)
	}
	last := m.found[len(m.found)-1]
	if want := fmt.Sprintf("the namespace has more than %d findings: the other 7 are left out", maxFindings); last.Message != want || last.Object.Namespace != "tenant" {
		t.Errorf("the last finding is %v, want %q", last, want)
	}
}
