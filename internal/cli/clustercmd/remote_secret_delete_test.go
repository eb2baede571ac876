package clustercmd

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// valid reports whether the API server accepts the token. A random audience bypasses its
// cache of reviews.
func valid(t *testing.T, c *testkube.Cluster, token string) bool {
	t.Helper()
	api, err := kube.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	review, err := api.ReviewToken(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{testkube.Issuer, testkube.Audience, rand.Text()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Authenticated
}

// wantValid checks whether the API server accepts tokens. It waits for the refusal of a token,
// because the API server reads the Secrets of tokens from a cache.
func wantValid(t *testing.T, c *testkube.Cluster, want bool, tokens map[string]string) {
	t.Helper()
	for name, token := range tokens {
		if token == "" {
			t.Errorf("the token %s is empty", name)
			continue
		}
		got := valid(t, c, token)
		for end := time.Now().Add(2 * time.Minute); got && !want && time.Now().Before(end); got = valid(t, c, token) {
			time.Sleep(100 * time.Millisecond)
		}
		if got != want {
			t.Errorf("valid is the token %s: %v, want %v", name, got, want)
		}
	}
}

// foreignToken creates a token Secret of the reader as another tool would.
func foreignToken(t *testing.T, c *testkube.Cluster, namespace string) string {
	t.Helper()
	c.Kubectl(t, `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token,
		metadata: {name: foreign, annotations: {kubernetes.io/service-account.name: `+create.Reader+`}}}`, "apply", "-n", namespace, "-f", "-")
	template := "go-template={{if .data}}{{with .data.token}}{{. | base64decode}}{{end}}{{end}}"
	c.WaitOutput(t, "ey", "get", "secret", "foreign", "-n", namespace, "-o", template)
	return c.Kubectl(t, "", "get", "secret", "foreign", "-n", namespace, "-o", template)
}

// createSecret writes the remote secret of cluster2 to cluster1 and returns its token.
func createSecret(t *testing.T, cluster1 *testkube.Cluster, kubeconfig, namespace string, more ...string) string {
	t.Helper()
	must(t, kubeconfig, append([]string{
		"create-remote-secret", "--context", "cluster2", "--name", "cluster2", "-n", namespace, "--apply", "--to", "cluster1",
	}, more...)...)
	return held(t, cluster1, namespace, "cluster2").User.Token
}

func TestRotateEndsEveryTokenThatMeshctlMade(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	endless := createSecret(t, cluster1, kubeconfig, namespace)
	foreign := foreignToken(t, cluster2, namespace)
	first := createSecret(t, cluster1, kubeconfig, namespace, "--ttl", "1h")
	old := createSecret(t, cluster1, kubeconfig, namespace, "--ttl", "1h")
	wantValid(t, cluster2, true, map[string]string{"without an end": endless, "first": first, "old": old, "of others": foreign})

	r := must(t, kubeconfig, "remote-secret", "rotate", "--context", "cluster2", "--to", "cluster1", "-n", namespace, "--no-wait")
	next := held(t, cluster1, namespace, "cluster2").User.Token
	wantValid(t, cluster2, false, map[string]string{"without an end": endless, "first": first, "old": old})
	wantValid(t, cluster2, true, map[string]string{"new": next, "of others": foreign})
	if want := "kept secret " + namespace + "/foreign, which meshctl did not create: its token of service account " + create.Reader + " is valid until"; !strings.Contains(r.stderr, want) {
		t.Errorf("no %q in\n%s", want, r.stderr)
	}
	if !strings.Contains(r.stdout, "and the old one is revoked") {
		t.Errorf("stdout\n%s", r.stdout)
	}
}

// TestRotateReportsTokensThatStillWork: a token that is bound to no Secret cannot be revoked.
func TestRotateReportsTokensThatStillWork(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	createSecret(t, cluster1, kubeconfig, namespace)
	unbound := strings.TrimSpace(cluster2.Kubectl(t, "", "create", "token", create.Reader, "-n", namespace))
	setToken(t, cluster1, namespace, unbound)

	r := meshctl(t, kubeconfig, "remote-secret", "rotate", "--context", "cluster2", "--to", "cluster1", "-n", namespace, "--no-wait")
	if r.code != 3 || strings.Contains(r.stdout, "ended") ||
		!strings.Contains(r.stderr, "still works, until ") || !strings.Contains(r.stderr, "it is bound to no secret and ends with the service account alone") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	wantValid(t, cluster2, true, map[string]string{"unbound": unbound, "new": held(t, cluster1, namespace, "cluster2").User.Token})
}

// setToken writes another token to the remote secret of cluster2.
func setToken(t *testing.T, in *testkube.Cluster, namespace, token string) {
	t.Helper()
	const name = "istio-remote-secret-cluster2"
	kubeconfig := in.Kubectl(t, "", "get", "secret", "-n", namespace, name, "-o", "go-template={{.data.cluster2 | base64decode}}")
	before, _, _ := strings.Cut(kubeconfig, "token: ")
	in.Kubectl(t, "", "patch", "secret", "-n", namespace, name, "--type", "merge", "-p",
		fmt.Sprintf(`{"stringData": {"cluster2": %q}}`, before+"token: "+token+"\n"))
}

// TestRotateMakesNoTokenOfAnotherAccount: the token in a remote secret may name any account,
// so rotate creates no token of an account that the token does not prove.
func TestRotateMakesNoTokenOfAnotherAccount(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	createSecret(t, cluster1, kubeconfig, namespace)
	cluster2.Kubectl(t, "", "create", "serviceaccount", "-n", namespace, "victim")
	for subject, want := range map[string]string{
		"system:serviceaccount:" + namespace + ":victim": "service account " + namespace + "/victim is named by a token that the API server refuses",
		"system:serviceaccount:kube-system:victim":       "has a token of service account kube-system/victim: the readers of its cluster are service accounts of namespace " + namespace,
	} {
		claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"sub": %q}`, subject))
		setToken(t, cluster1, namespace, "e30."+claims+".c2ln")
		before := cluster2.Kubectl(t, "", "get", "secrets", "-n", namespace, "-o", "name")
		r := meshctl(t, kubeconfig, "remote-secret", "rotate", "--context", "cluster2", "--to", "cluster1", "-n", namespace, "--no-wait")
		if r.code != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("exit %d, want %q in\n%s%s", r.code, want, r.stdout, r.stderr)
		}
		if after := cluster2.Kubectl(t, "", "get", "secrets", "-n", namespace, "-o", "name"); after != before {
			t.Errorf("before\n%safter\n%s", before, after)
		}
	}
}

// TestRotateAfterRevocation: rotate mends what deleting the token's Secret or the service account broke,
// as check and remote-clusters advise it.
func TestRotateAfterRevocation(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	for _, broken := range [][]string{
		{"delete", "secret", "-n", namespace, create.Reader + "-istio-remote-secret-token"}, // the first: rotate makes others
		{"delete", "secrets", "--all", "-n", namespace},
		{"delete", "serviceaccount", "-n", namespace, create.Reader},
		{"delete", "serviceaccount,clusterrolebinding", "-n", namespace, create.Reader, "meshctl-reader-" + namespace + "-" + create.Reader, "--ignore-not-found"},
	} {
		name := strings.Join(broken, " ")
		before := createSecret(t, cluster1, kubeconfig, namespace)
		cluster2.Kubectl(t, "", broken...)
		wantValid(t, cluster2, false, map[string]string{name: before})
		r := must(t, kubeconfig, "remote-secret", "rotate", "--name", "cluster2", "--context", "cluster2", "--to", "cluster1", "-n", namespace, "--no-wait")
		after := held(t, cluster1, namespace, "cluster2")
		if after.User.Token == before || !strings.Contains(r.stdout, "and the old one is revoked") {
			t.Errorf("%s:\n%s%s", name, r.stdout, r.stderr)
		}
		asReader(t, after, cluster2, "get", "services", "-A")
	}
}

func TestLinkEndsTheTokensThatItReplaces(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	link := []string{"multicluster", "link", "cluster1", "cluster2", "-n", namespace}
	tokens := func() (of1, of2 string) {
		return held(t, cluster2, namespace, "cluster1").User.Token, held(t, cluster1, namespace, "cluster2").User.Token
	}
	must(t, kubeconfig, link...)
	endless1, endless2 := tokens()
	must(t, kubeconfig, append(link, "--ttl", "1h")...)
	ttl1, ttl2 := tokens()
	wantValid(t, cluster1, false, map[string]string{"without an end": endless1})
	wantValid(t, cluster2, false, map[string]string{"without an end": endless2})
	wantValid(t, cluster1, true, map[string]string{"with an end": ttl1})
	wantValid(t, cluster2, true, map[string]string{"with an end": ttl2})

	// A token that another cluster uses is kept and listed.
	asIfThird(t, cluster1, namespace)
	r := must(t, kubeconfig, link...)
	wantValid(t, cluster1, true, map[string]string{"with an end": ttl1})
	wantValid(t, cluster2, true, map[string]string{"with an end": ttl2})
	for _, want := range []string{
		"Warning: context cluster1: kept the tokens of service account " + namespace + "/" + create.Reader + " in secret ",
		"meshctl remote-secret rotate --context cluster2 --to CONTEXTS",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
}

// asIfThird writes the remote secret of a cluster "third".
func asIfThird(t *testing.T, c *testkube.Cluster, namespace string) {
	t.Helper()
	c.Apply(t, `{apiVersion: v1, kind: Secret, stringData: {third: "{}"},
		metadata: {name: istio-remote-secret-third, namespace: `+namespace+`, labels: {istio/multiCluster: "true"}}}`)
}

func TestUnlinkEndsTokens(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	unlink := []string{"multicluster", "unlink", "cluster1", "cluster2", "-n", namespace}
	endless := createSecret(t, cluster1, kubeconfig, namespace)
	bound := createSecret(t, cluster1, kubeconfig, namespace, "--ttl", "1h")
	foreign := foreignToken(t, cluster2, namespace)

	r := must(t, kubeconfig, unlink...)
	if r.stdout != "2 clusters unlinked\n" || !strings.Contains(r.stderr, "kept secret "+namespace+"/foreign, which meshctl did not create") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	wantValid(t, cluster2, false, map[string]string{"without an end": endless, "with an end": bound})
	wantValid(t, cluster2, true, map[string]string{"of others": foreign})

	if r := must(t, kubeconfig, unlink...); !strings.HasPrefix(r.stdout, "nothing to unlink: clusters cluster1, cluster2 have no remote secrets of each other in namespace ") {
		t.Errorf("a second call: %s%s", r.stdout, r.stderr)
	}
}

func TestUnlinkKeepsTokensOfOtherClusters(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	token := createSecret(t, cluster1, kubeconfig, namespace)
	asIfThird(t, cluster2, namespace)

	r := must(t, kubeconfig, "multicluster", "unlink", "cluster1", "cluster2", "-n", namespace)
	if !strings.Contains(r.stderr, "because cluster third may use them") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	wantValid(t, cluster2, true, map[string]string{"of cluster2": token})

	// The tokens can be revoked when the remote secrets are gone.
	revoke := []string{"remote-secret", "delete", "cluster2", "--to", "cluster1", "--revoke-in", "cluster2", "-n", namespace}
	r = must(t, kubeconfig, revoke...)
	if !strings.Contains(r.stderr, "context cluster2: deleted secret "+namespace+"/"+create.Reader+"-istio-remote-secret-token and so revoked its tokens of service account") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	wantValid(t, cluster2, false, map[string]string{"of cluster2": token})
	if r := meshctl(t, kubeconfig, revoke...); r.code != 1 || !strings.Contains(r.stderr, "cluster cluster2 has no remote secret there, and its reader has no token that meshctl created") {
		t.Errorf("a second call: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// TestRevokeDeletesOnlySecretsOfTokens: the token and the annotations of a remote secret are
// not trusted; only token Secrets of the reader are deleted.
func TestRevokeDeletesOnlySecretsOfTokens(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	createSecret(t, cluster1, kubeconfig, namespace, "--ttl", "1h")
	cluster2.Kubectl(t, "", "create", "secret", "generic", "cacerts", "-n", namespace)
	cluster1.Kubectl(t, "", "annotate", "--overwrite", "secret", "-n", namespace, "istio-remote-secret-cluster2",
		"meshctl.io/token-bound-to="+namespace+"/cacerts")
	must(t, kubeconfig, "remote-secret", "delete", "cluster2", "--to", "cluster1", "--revoke-in", "cluster2", "-n", namespace)
	cluster2.Kubectl(t, "", "get", "secret", "cacerts", "-n", namespace)
}
