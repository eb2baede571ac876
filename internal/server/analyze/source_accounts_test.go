package analyze_test

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
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
apiVersion: v1
kind: Pod
metadata: {name: bot-1, namespace: team}
spec: {serviceAccountName: bot, containers: []}
status: {podIP: 10.1.0.2}
---
`
	for name, tt := range map[string]struct {
		rule  string
		level codes.Level // "" for no finding
		text  string
	}{
		"the account":        {`from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]`, "", ""},
		"a typo":             {`from: [{source: {principals: [cluster.local/ns/shop/sa/cliennt]}}]`, codes.Warning, "source.principals[0]: no workload of the namespace shop has the service account cliennt: no request comes from it; did you mean client?"},
		"another namespace":  {`from: [{source: {principals: [cluster.local/ns/team/sa/client]}}]`, codes.Warning, "no workload of the namespace team has the service account client: no request comes from it; did you mean cluster.local/ns/shop/sa/client?"},
		"of another one":     {`from: [{source: {serviceAccounts: [team/client]}}]`, codes.Warning, "did you mean shop/client?"},
		"not the caller":     {`from: [{source: {principals: ["*"], notPrincipals: [cluster.local/ns/shop/sa/cliennt]}}]`, codes.Warning, "source.notPrincipals[0]: no workload"},
		"a condition":        {`when: [{key: source.principal, values: [cluster.local/ns/shop/sa/cliennt]}]`, codes.Warning, "when[0].values[0]: no workload"},
		"an account":         {`from: [{source: {serviceAccounts: [cliennt]}}]`, codes.Warning, "source.serviceAccounts[0]: no workload"},
		"of a namespace":     {`from: [{source: {serviceAccounts: [shop/client]}}]`, "", ""},
		"a job":              {`from: [{source: {principals: [cluster.local/ns/shop/sa/nightly]}}]`, codes.Info, "no workload of the namespace shop has the service account nightly: no request comes from it"},
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

// TestSourcePrincipals: a principal of a namespace that does not exist, or of another trust domain, gets a
// warning with the right principal.
func TestSourcePrincipals(t *testing.T) {
	t.Parallel()
	const mesh = `
{apiVersion: v1, kind: Namespace, metadata: {name: sample}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client-1, namespace: sample, labels: {app: client}}, spec: {serviceAccountName: client, containers: []}, status: {podIP: 10.1.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: istiod-1, namespace: istio-system, labels: {app: istiod}}, spec: {containers: [{name: discovery, image: "example.com/meshctl:2", args: [ARGS]}]}, status: {podIP: 10.1.0.2}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: "{trustDomainAliases: [old.local], caCertificates: [{spiffeBundleUrl: 'https://other.example/b', trustDomains: [known.example]}]}"}}
---
{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: callers, namespace: sample}, spec: {rules: [{from: [{source: {FIELD: ["VALUE"]}}]}]}}
`
	for _, tt := range []struct{ args, field, value, text, fix string }{
		{"serve", "principals", "cluster.local/ns/sample/sa/client", "", ""},
		{"serve", "principals", "old.local/ns/sample/sa/client", "", ""},
		{"serve", "principals", "*/ns/sample/sa/client", "", ""},
		{"serve", "principals", "*", "", ""},
		{"serve", "principals", "cluster.local/ns/sample/*", "", ""},
		{"serve", "principals", "cluster.local/ns/sam*", "", ""},
		{"serve", "principals", "cluster.local/ns/sampel/sa/client", "no namespace sampel exists: no request comes from it; did you mean sample?", `set principals[0]: "cluster.local/ns/sample/sa/client"`},
		{"serve", "principals", "cluster.local/ns/sampel/*", "no namespace sampel exists", "cluster.local/ns/sample/*"},
		{"serve", "principals", "*/ns/sampel/sa/client", "no namespace sampel exists", "*/ns/sample/sa/client"},
		{"serve", "notPrincipals", "cluster.local/ns/other/sa/client", "no namespace other exists: no request comes from it", ""},
		{"serve", "serviceAccounts", "sampel/client", "no namespace sampel exists", `"sample/client"`},
		{"serve", "principals", "mesh.local/ns/sample/sa/client", "mesh.local is no trust domain of the mesh, which has cluster.local, old.local: no request comes from it", `"cluster.local/ns/sample/sa/client"`},
		{"serve", "principals", "mesh.local/ns/sample/*", "mesh.local is no trust domain", `"cluster.local/ns/sample/*"`},
		{"serve", "principals", "mesh.local/ns/remote/sa/client", "", ""}, // perhaps of a mesh with the same root
		{"serve", "principals", "known.example/ns/sample/sa/client", "", ""},
		{"serve, --federate=mesh.local=https://mesh.local/bundle", "principals", "mesh.local/ns/sample/sa/client", "", ""},
	} {
		text := strings.NewReplacer("ARGS", tt.args, "FIELD", tt.field, "VALUE", tt.value).Replace(mesh)
		found := analyze.Reports(checkWith(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(text)}}}}, options(true)))
		switch {
		case tt.text == "" && len(found) > 0:
			t.Errorf("%s %s: found %v", tt.field, tt.value, found)
		case tt.text == "":
		case len(found) != 1 || found[0].Code != "IST0101" || found[0].Level != codes.Warning || !strings.Contains(found[0].Message, tt.text) || !strings.Contains(found[0].Fix, tt.fix) || (tt.fix == "") != (found[0].Fix == ""):
			t.Errorf("%s %s: found %v, want %s, fix %s", tt.field, tt.value, found, tt.text, tt.fix)
		}
	}
}
