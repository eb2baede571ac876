package create

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/kube"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite golden files")
	flag.Parse()
	os.Exit(m.Run())
}

// TestRoles: readers may read Secrets only if gateways need their certificates.
func TestRoles(t *testing.T) {
	t.Parallel()
	account := Account{Namespace: "istio-system", Name: "istio-reader-service-account"}
	for name, scope := range map[string]Scope{
		"minimal":       {Style: Minimal, Authenticate: true},
		"no-callers":    {Style: Minimal},
		"namespaces":    {Style: Minimal, Namespaces: []string{"shop", "stock"}, CredentialNamespaces: []string{"edge"}, Authenticate: true},
		"renew":         {Style: Minimal, Authenticate: true, Renew: true},
		"configuration": {Style: Minimal, CredentialNamespaces: []string{"edge"}, Authenticate: true, Configuration: true},
		"istio":         {Style: Istio, Authenticate: true, Renew: true},
	} {
		var text bytes.Buffer
		for _, o := range scope.Objects(account) {
			doc, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(doc)
			text.WriteString("---\n")
			checkRules(t, name, scope, o)
		}
		path := filepath.Join("testdata", "role-"+name+".yaml")
		if flag.Lookup("update").Value.String() == "true" {
			if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), text.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func checkRules(t *testing.T, name string, scope Scope, o kube.Object) {
	t.Helper()
	var rules []rbacv1.PolicyRule
	switch role := o.(type) {
	case *rbacv1.ClusterRole:
		rules = role.Rules
	case *rbacv1.Role:
		rules = role.Rules
	}
	for _, rule := range rules {
		reviews := slices.Contains([]string{"authentication.k8s.io", "authorization.k8s.io"}, rule.APIGroups[0])
		ownToken := slices.Equal(rule.Resources, []string{"serviceaccounts/token"}) && len(rule.ResourceNames) == 1 && kindOf(o) == "Role"
		exports := scope.Style == Istio && slices.Equal(rule.Resources, []string{"serviceexports"})
		for _, verb := range rule.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) && (!reviews && !ownToken || verb != "create") && !exports {
				t.Errorf("%s: may %s %v", name, verb, rule.Resources)
			}
		}
		if scope.Style == Minimal && slices.Contains(rule.Resources, "secrets") && !slices.Contains(scope.CredentialNamespaces, o.GetNamespace()) {
			t.Errorf("%s: may read Secrets of %q", name, o.GetNamespace())
		}
		if scope.Style == Minimal && strings.Contains(strings.Join(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs), " "), "*") {
			t.Errorf("%s: a wildcard in %v", name, rule)
		}
	}
}
