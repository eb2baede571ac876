package clustercmd

import (
	"strings"
	"testing"
)

// TestMulticlusterCommandsNameTheMissingRight: each command names the missing right and a fix.
func TestMulticlusterCommandsNameTheMissingRight(t *testing.T) {
	t.Parallel()
	_, _, kubeconfig, namespace := linked(t)
	const nobody = `User "nobody" cannot `
	for args, want := range map[string]string{
		"create-remote-secret --context cluster1 --name cluster1":                            nobody + `get resource "serviceaccounts"`,
		"create-remote-secret --context cluster1":                                            nobody + `get resource "namespaces"`,
		"create-remote-secret --context cluster1 --name cluster1 --api-server auto --ttl 1h": nobody + `get resource "serviceaccounts"`,
		"create-remote-secret --context cluster1 --name cluster1 --apply --to cluster2":      nobody + `get resource "serviceaccounts"`,
		"create-remote-secret --context cluster1 --name c --create-service-account=false":    nobody + `get resource "serviceaccounts"`,
		"multicluster link cluster1 cluster2":                                                nobody + `get resource "namespaces"`,
		"multicluster unlink cluster1 cluster2":                                              nobody + `list resource "secrets"`,
		"multicluster drain cluster2 --context cluster1":                                     nobody + `get resource "configmaps"`,
		"multicluster undrain cluster2 --context cluster1":                                   nobody + `get resource "configmaps"`,
		"multicluster weight cluster2 10 --context cluster1 --force":                         nobody + `get resource "configmaps"`,
		"remote-secret list --context cluster1":                                              nobody + `list resource "secrets"`,
		"remote-secret check --context cluster1":                                             nobody + `list resource "secrets"`,
		"remote-secret rotate --context cluster1 --to cluster2":                              nobody + `list resource "leases"`,
		"remote-secret rotate --context cluster1 --to cluster2 --no-wait":                    nobody + `get resource "secrets"`,
		"remote-secret delete cluster2 --to cluster1 --revoke-in cluster2":                   nobody + `get resource "secrets"`,
	} {
		r := meshctl(t, kubeconfig, append(strings.Fields(args), "-n", namespace, "--as", "nobody")...)
		if r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "context cluster") ||
			!strings.Contains(r.stderr, `have user "nobody" granted the right, or use a context or --as USER that has it`) {
			t.Errorf("%s: exit %d, want %s\n%s%s", args, r.code, want, r.stdout, r.stderr)
		}
		for _, wrong := range []string{"cannot be reached", "canceled", "minimal Istio profile"} {
			if strings.Contains(r.stderr, wrong) {
				t.Errorf("%s: %q is not the reason\n%s", args, wrong, r.stderr)
			}
		}
	}
}

// TestLinkAdvisesCommandsThatExist: the advice of link names commands that have the flags.
func TestLinkAdvisesCommandsThatExist(t *testing.T) {
	t.Parallel()
	_, _, kubeconfig, namespace := linked(t)
	const loopback = "context cluster1: the API server was found at loopback addresses only"
	create := "meshctl create-remote-secret --context cluster1 --name cluster1 -n " + namespace + " --apply --to cluster2 --api-server"
	for args, want := range map[string][]string{
		"":                  {"Warning: context cluster1: server in Kubeconfig is", "pass " + create + " with the container IP"},
		"--api-server auto": {loopback, "take one with --force, or name another with " + create + " URL"},
	} {
		r := meshctl(t, kubeconfig, append([]string{"multicluster", "link", "cluster1", "cluster2", "-n", namespace}, strings.Fields(args)...)...)
		for _, text := range want {
			// The order of the clusters is random.
			if !strings.Contains(r.stderr, text) && !strings.Contains(r.stderr, swap(text)) {
				t.Errorf("link %s: exit %d, no %q in\n%s", args, r.code, text, r.stderr)
			}
		}
	}
}

// swap exchanges the names of the clusters.
func swap(text string) string {
	return strings.NewReplacer("cluster1", "cluster2", "cluster2", "cluster1").Replace(text)
}

func TestEmptyListsOfRemoteSecretsSayTheyAreEmpty(t *testing.T) {
	t.Parallel()
	_, _, kubeconfig, namespace := linked(t)
	for _, command := range []string{"list", "check"} {
		r := must(t, kubeconfig, "remote-secret", command, "--context", "cluster1", "-n", namespace)
		if r.stdout != "" || r.stderr != "there are no remote secrets in namespace "+namespace+" of context cluster1\n" {
			t.Errorf("%s: %q, %q", command, r.stdout, r.stderr)
		}
	}
}
