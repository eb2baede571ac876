package clusters

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// TestFaultsOfReader: each cause has its own fault, missing rights one for each namespace,
// the worst first.
func TestFaultsOfReader(t *testing.T) {
	resource := func(name, namespace string, cause kube.Cause, optional bool, text string) kube.ResourceStatus {
		return kube.ResourceStatus{Resource: name, Namespace: namespace, Cause: cause, Optional: optional, Error: text, Since: time.Unix(1, 0)}
	}
	got := faultsOf(&kube.Status{Resources: []kube.ResourceStatus{
		resource("nodes", "", kube.CauseForbidden, true, "may not list nodes"),
		resource("secrets", "a", kube.CauseForbidden, true, "may not list secrets in the namespace a"),
		resource("services", "b", kube.CauseForbidden, false, "may not list services"),
		resource("pods", "b", kube.CauseForbidden, false, "may not list pods"),
		resource("namespaces", "", kube.CauseTCP, false, "TCP: refused"),
		resource("endpointslices", "", kube.CauseTCP, false, "TCP: reset"),
		resource("gateways", "", kube.CauseUnauthorized, false, "refused: 401"),
		resource("sidecars", "", kube.CauseNotInstalled, false, ""),
	}})
	want := []Fault{
		{Cause: "401", Reason: "refused: 401"},
		{Cause: "tcp", Reason: "TCP: refused"},
		{Cause: "403", Reason: "namespace b: may not list services; nor may it read pods"},
		{Cause: "403", Reason: "may not list nodes"},
		{Cause: "403", Reason: "may not list secrets in the namespace a", Credentials: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// TestNewCredentialRefused: a new credential that is refused is a fault while the old one
// works, next to a missing right and with the commands that mend both.
func TestNewCredentialRefused(t *testing.T) {
	w := start(t)
	var good, bad atomic.Pointer[Report]
	good.Store(&Report{Cause: "403", Reason: "may not list nodes", Faults: []Fault{{Cause: "403", Reason: "may not list nodes"}}})
	bad.Store(&Report{LostSince: w.clock(), Cause: "401", Reason: "refused: 401"})
	w.Set(secret("a"), []Spec{spec("c2", "1", Access{NewSource: func() Source {
		return scriptedSource{serves("c2", hello("c2", "10.2.0.1")), &good}
	}})})
	w.until("synced", w.synced("c2"))
	never := func(ctx context.Context, _ snapshot.Sink) error {
		<-ctx.Done()
		return nil
	}
	refused := spec("c2", "2", Access{NewSource: func() Source { return scriptedSource{never, &bad} }})
	refused.Namespaces = []string{"apps", "web"}
	w.Set(secret("a"), []Spec{refused})
	w.until("two faults", func() bool { return len(w.status("c2").Faults) == 2 })
	s := w.status("c2")
	if s.State != Synced || !s.LostSince.IsZero() || s.Cause != "401" || !strings.Contains(s.Reason, "the new credential 2 cannot replace the old one, which stays in use: refused: 401") {
		t.Errorf("status %+v", s)
	}
	if got, want := s.Faults[0].Fix, "meshctl remote-secret rotate --name c2 --context CONTEXT_OF_c2 --to CONTEXT_OF_c1"; got != want {
		t.Errorf("fix %q, want %q", got, want)
	}
	if got, want := s.Faults[1], (Fault{"403", "may not list nodes", "meshctl create-remote-secret --name c2 --context CONTEXT_OF_c2 --apply --to CONTEXT_OF_c1", false}); got != want {
		t.Errorf("fault %+v, want %+v", got, want)
	}
	good.Store(&Report{LostSince: w.clock(), Cause: "tcp", Reason: "TCP: refused"})
	if s := w.status("c2"); s.State != Lost || s.Cause != "tcp" || len(s.Faults) != 2 || s.Faults[1].Cause != "401" {
		t.Errorf("status %+v", s)
	}
}

// TestFaultsAfterRestart: a cluster whose only credential is expired and refused has one
// fault, and one that cannot be reached either has two.
func TestFaultsAfterRestart(t *testing.T) {
	s := Status{Cluster: "c2", Origin: "istio-system/a", OriginKind: OriginSecret, Report: Report{Cause: "401", Reason: "refused: 401", Faults: []Fault{{Cause: "401", Reason: "refused: 401"}}}}
	s.withCredential(credentialExpired, "credential expired")
	s.addFaults("c1", &Spec{}, nil)
	if len(s.Faults) != 1 || s.Reason != "credential expired; refused: 401" || !strings.Contains(s.Faults[0].Fix, "rotate") {
		t.Errorf("status %+v", s)
	}
	s = Status{Cluster: "c2", Origin: "mesh/a", OriginKind: OriginSecret, Report: Report{Cause: "tls", Reason: "TLS: unknown"}}
	s.withCredential(credentialExpired, "credential expired")
	s.addFaults("c1", &Spec{}, nil)
	if len(s.Faults) != 2 || s.Cause != "tls" || s.Faults[1].Cause != CauseExpired || !strings.HasSuffix(s.Faults[0].Fix, " --istioNamespace mesh") {
		t.Errorf("status %+v", s)
	}
}
