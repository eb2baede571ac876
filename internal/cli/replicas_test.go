package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/proxystatus"
)

// TestUnread: replicas that do not answer are a failure if none does, else what was not read.
func TestUnread(t *testing.T) {
	t.Parallel()
	gone := errors.New("connection refused")
	report := func(name string, err error) proxystatus.Report {
		r := proxystatus.Report{Replica: name, Err: err}
		if err != nil {
			r.Error = err.Error()
		}
		return r
	}
	for name, tc := range map[string]struct {
		flags   ReplicaFlags
		reports []proxystatus.Report
		code    int
		want    string
	}{
		"all answer":    {ReplicaFlags{}, []proxystatus.Report{report("a", nil), report("b", nil)}, ExitOK, ""},
		"one is silent": {ReplicaFlags{named: true}, []proxystatus.Report{report("a", nil), report("b", gone)}, ExitIncomplete, "not read: b: connection refused"},
		"none answers":  {ReplicaFlags{named: true}, []proxystatus.Report{report("a", gone)}, ExitFailure, "a: connection refused; --server takes the --http-addr of control planes, --context their cluster"},
		"no kubeconfig": {ReplicaFlags{named: true, guessed: true}, []proxystatus.Report{report("127.0.0.1:8080", gone)}, ExitFailure, "there is no kubeconfig, so this address was asked: name a kubeconfig with --kubeconfig, or "},
	} {
		err := runError(tc.flags.SilentReports(tc.reports))
		code, text := ExitOK, ""
		if coded, ok := errors.AsType[*codedError](err); ok {
			code, text = coded.code, coded.Error()
		}
		if code != tc.code || !strings.Contains(text, tc.want) {
			t.Errorf("%s: exit code %d, want %d, %q: %q", name, code, tc.code, tc.want, text)
		}
	}
	looked := LookedAt([]proxystatus.Report{
		{Replica: "a", Proxies: []proxystatus.Proxy{{Name: "web.apps", Cluster: "east"}, {Name: "web.apps", Cluster: "east"}}},
		{Replica: "b", Proxies: []proxystatus.Proxy{{Name: "web.apps", Cluster: "west"}}},
		report("c", gone),
	})
	if want := "2 proxies of control planes a, b"; looked != want {
		t.Errorf("looked at %s, want %s", looked, want)
	}
}
