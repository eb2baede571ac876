package analyze_test

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// TestSourceAccounts: a policy with a service account that no workload has gets a finding, a warning
// if another account has a similar name; but only if all workloads of the mesh are known.
func TestSourceAccounts(t *testing.T) {
	t.Parallel()
	const pods = `
apiVersion: v1
kind: Pod
metadata: {name: client-1, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client, containers: []}
status: {podIP: 10.1.0.1}
---
`
	for name, tt := range map[string]struct {
		rule  string
		level analyze.Level // "" for no finding
		text  string
	}{
		"the account":        {`from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]`, "", ""},
		"a typo":             {`from: [{source: {principals: [cluster.local/ns/shop/sa/cliennt]}}]`, analyze.Warning, "source.principals[0]: no workload of the namespace shop has the service account cliennt: no request comes from it; did you mean client?"},
		"not the caller":     {`from: [{source: {principals: ["*"], notPrincipals: [cluster.local/ns/shop/sa/cliennt]}}]`, analyze.Warning, "source.notPrincipals[0]: no workload"},
		"a condition":        {`when: [{key: source.principal, values: [cluster.local/ns/shop/sa/cliennt]}]`, analyze.Warning, "when[0].values[0]: no workload"},
		"an account":         {`from: [{source: {serviceAccounts: [cliennt]}}]`, analyze.Warning, "source.serviceAccounts[0]: no workload"},
		"of a namespace":     {`from: [{source: {serviceAccounts: [shop/client]}}]`, "", ""},
		"a job":              {`from: [{source: {principals: [cluster.local/ns/shop/sa/nightly]}}]`, analyze.Info, "no workload of the namespace shop has the service account nightly: no request comes from it"},
		"a pattern":          {`from: [{source: {principals: ["cluster.local/ns/shop/*"]}}]`, "", ""},
		"a suffix":           {`from: [{source: {principals: ["*/sa/cliennt"]}}]`, "", ""},
		"other trust domain": {`from: [{source: {principals: [other.example/ns/shop/sa/cliennt]}}]`, "", ""},
		"no workloads":       {`from: [{source: {principals: [cluster.local/ns/jobs/sa/cliennt]}}]`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: callers, namespace: shop}
spec: {selector: {matchLabels: {app: client}}, rules: [{` + tt.rule + `}]}
`
			of := []load.Cluster{{ID: "east", Files: []load.File{{Name: "east.yaml", Text: []byte(pods + policy)}}}}
			found := checkWith(t, of, options(true))
			if tt.level == "" {
				if len(found) > 0 {
					t.Error(texts(found))
				}
				return
			}
			if len(found) != 1 || found[0].Code != "IST0101" || found[0].Severity() != tt.level || !strings.Contains(found[0].Field+": "+found[0].Message, tt.text) {
				t.Errorf("found %s, want %s %s", texts(found), tt.level, tt.text)
			}
			incomplete := options(true)
			incomplete.Unread = []mesh.ClusterID{"west"}
			linked, unknown := options(true), options(true)
			linked.Links = func(mesh.ClusterID) []mesh.ClusterID { return []mesh.ClusterID{"west"} }
			unknown.Links = func(mesh.ClusterID) []mesh.ClusterID { return nil }
			for why, o := range map[string]analyze.Options{
				"a directory": options(false), "a cluster that was not read": incomplete, "a linked cluster that was not read": linked, "unknown links": unknown,
			} {
				if found := checkWith(t, of, o); len(found) > 0 {
					t.Errorf("%s: %s", why, texts(found))
				}
			}
		})
	}
}

// TestSourceAccountsOfOtherClusters: the accounts of all clusters that were read exist.
func TestSourceAccountsOfOtherClusters(t *testing.T) {
	t.Parallel()
	policy := `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: callers, namespace: shop}
spec: {action: DENY, rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]}
---
`
	pod := `
apiVersion: v1
kind: Pod
metadata: {name: ACCOUNT-1, namespace: shop}
spec: {serviceAccountName: ACCOUNT, containers: []}
status: {podIP: 10.1.0.1}
`
	cluster := func(id mesh.ClusterID, account string) load.Cluster {
		return load.Cluster{ID: id, Files: []load.File{{Name: string(id), Text: []byte(policy + strings.ReplaceAll(pod, "ACCOUNT", account))}}}
	}
	for account, want := range map[string]int{"client": 0, "clients": 2} {
		if found := checkWith(t, []load.Cluster{cluster("east", "clientx"), cluster("west", account)}, options(true)); len(found) != want {
			t.Errorf("account %s: found %s, want %d", account, texts(found), want)
		}
	}
}
