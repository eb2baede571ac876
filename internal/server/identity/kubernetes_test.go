package identity

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/token"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// counted counts the reviews and the key fetches made with an access.
func counted(access *rest.Config) (_ *rest.Config, reviews, fetches *atomic.Int64) {
	reviews, fetches = new(atomic.Int64), new(atomic.Int64)
	access = rest.CopyConfig(access)
	access.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			switch {
			case strings.HasSuffix(req.URL.Path, "/tokenreviews"):
				reviews.Add(1)
			case strings.HasSuffix(req.URL.Path, "/jwks"):
				fetches.Add(1)
			}
			return next.RoundTrip(req)
		})
	})
	return access, reviews, fetches
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// pod creates a pod with its own service account.
func pod(t *testing.T, c *testkube.Cluster, namespace, name string) {
	t.Helper()
	c.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: %[1]s, name: %[2]s}
---
apiVersion: v1
kind: Pod
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  serviceAccountName: %[2]s
  containers: [{name: app, image: app}]
`, namespace, name))
}

// request requests a token as the kubelet does for a projected volume.
func request(t *testing.T, c *testkube.Cluster, namespace, name, audience string, bound bool) string {
	t.Helper()
	core := must(kube.NewClient(c.Config()))(t)
	spec := authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: new(int64(3600))}
	if bound {
		p := must(pods(core, namespace).Get(t.Context(), name))(t)
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: p.UID}
	}
	answer := must(core.CreateToken(t.Context(), namespace, name, &authenticationv1.TokenRequest{Spec: spec}))(t)
	return answer.Status.Token
}

func pods(api *kube.Client, namespace string) kube.Objects[*corev1.Pod, *corev1.PodList] {
	return kube.ObjectsOf[corev1.Pod, corev1.PodList](api, corev1.SchemeGroupVersion, "pods", namespace)
}

// until repeats ok until it is true, as the API server notices changes late.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("still not: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestTokensOfKubernetes(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := testkube.Start(t)
	ns := c.Namespace(t, "apps")
	t.Run("forged tokens", func(t *testing.T) { forgedTokens(t, c, ns) })
	t.Run("token of a deleted pod", func(t *testing.T) { tokenOfDeletedPod(t, c, ns) })
	t.Run("credential without the right to review", func(t *testing.T) { withoutRight(t, c, ns) })
	t.Run("API server gone", func(t *testing.T) { gone(t, c, ns) })
}

// forgedTokens: forged and misused tokens are refused without a request to the API
// server.
func forgedTokens(t *testing.T, c *testkube.Cluster, ns string) {
	pod(t, c, ns, "web")
	r := newReviewTest(t, time.Now())
	access, reviews, fetches := counted(c.Config())
	if err := r.reviewers.SetCluster("east", access); err != nil {
		t.Fatal(err)
	}
	good := request(t, c, ns, "web", testkube.Audience, true)
	want := caller("cluster.local", ns, "web", "east")
	if got, err := r.ask(t, good, "east"); err != nil || got != want {
		t.Fatalf("the good token: %+v, %v", got, err)
	}
	reviews.Store(0)
	st := r.waitStatus(t, known)
	if st.Issuer != testkube.Issuer {
		t.Errorf("issuer %q", st.Issuer)
	}

	part := strings.Split(good, ".")
	b64 := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	kid := must(jwt.ParseSigned(good, []jose.SignatureAlgorithm{jose.RS256}))(t).Headers[0].KeyID
	public := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: c.CA()})},
		(&jose.SignerOptions{}).WithHeader("kid", kid)))(t)
	other := must(token.GenerateIssuer(testkube.Issuer))(t)
	claims := token.Claims{Namespace: ns, ServiceAccount: "web", Audiences: []string{testkube.Audience}, TTL: time.Hour}
	payload := must(base64.RawURLEncoding.DecodeString(part[1]))(t)
	for name, raw := range map[string]string{
		"wrong audience":       request(t, c, ns, "web", "vault", true),
		"alg none":             b64(`{"alg":"none","kid":"`+kid+`"}`) + "." + part[1] + ".",
		"HS256":                must(must(public.Sign(payload))(t).CompactSerialize())(t),
		"unknown kid":          must(other.Create(claims, time.Now()))(t),
		"duplicate claims":     part[0] + "." + b64(strings.Replace(string(payload), "{", `{"sub":"system:serviceaccount:istio-system:istiod",`, 1)) + "." + part[2],
		"another's payload":    part[0] + "." + b64(strings.ReplaceAll(string(payload), "web", "admin")) + "." + part[2],
		"1 MB":                 strings.Repeat("a", 1<<20),
		"without audience":     request(t, c, ns, "web", testkube.Issuer, true),
		"a static credential":  "admin",
		"nothing":              "",
		"broken signature":     good[:len(good)-4] + "AAAA",
		"two of them":          good + "," + good,
		"with a line break":    good + "\n",
		"JSON":                 `{"payload":"e30","signatures":[]}`,
		"header of 15 KB":      b64(`{"alg":"RS256","kid":"`+strings.Repeat("k", 10<<10)+`"}`) + "." + part[1] + "." + part[2],
		"kid of a path":        b64(`{"alg":"RS256","kid":"../../etc/passwd"}`) + "." + part[1] + "." + part[2],
		"a key in its header":  b64(`{"alg":"RS256","jku":"https://evil.example/jwks"}`) + "." + part[1] + "." + part[2],
		"a foreign authority":  must(must(token.GenerateIssuer("https://evil.example"))(t).Create(claims, time.Now()))(t),
		"the payload of null":  part[0] + "." + b64("null") + "." + part[2],
		"the signature alone":  ".." + part[2],
		"without its own part": part[0] + "." + part[1],
	} {
		for range 20 {
			if got, err := r.ask(t, raw, "east"); status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
	}
	r.later(-time.Hour)
	if _, err := r.ask(t, good, "east"); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "not valid before") {
		t.Errorf("not valid yet: %v", err)
	}
	r.later(3 * time.Hour)
	if _, err := r.ask(t, good, "east"); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("expired: %v", err)
	}
	if n := reviews.Load(); n != 0 {
		t.Errorf("%d bad tokens came to the API server", n)
	}
	if n := fetches.Load(); n > 2 { // at first, and once for an unknown kid
		t.Errorf("the keys were read %d times", n)
	}
}

// tokenOfDeletedPod: a token ends with its pod and with its service account.
func tokenOfDeletedPod(t *testing.T, c *testkube.Cluster, ns string) {
	core := must(kube.NewClient(c.Config()))(t)
	for name, remove := range map[string]func(name string) error{
		"pod": func(name string) error {
			return pods(core, ns).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		},
		"account": func(name string) error {
			return core.ServiceAccounts(ns).Delete(t.Context(), name, metav1.DeleteOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			app := "dies-with-its-" + name
			pod(t, c, ns, app)
			// A new pod of the same name does not revive the token.
			raw := request(t, c, ns, app, testkube.Audience, true)
			r := newReviewTest(t, time.Now())
			access, reviews, _ := counted(c.Config())
			if err := r.reviewers.SetCluster("east", access); err != nil {
				t.Fatal(err)
			}
			if _, err := r.ask(t, raw, "east"); err != nil {
				t.Fatal(err)
			}
			if err := remove(app); err != nil {
				t.Fatal(err)
			}
			if name == "pod" {
				pod(t, c, ns, app)
			}
			if _, err := r.ask(t, raw, "east"); err != nil || reviews.Load() != 1 {
				t.Errorf("within 10 s: %d reviews, %v", reviews.Load(), err)
			}
			// The API server would have repeated its answer to the same
			// review for 10 s.
			var err error
			began := time.Now()
			until(t, "the token is refused", func() bool {
				r.later(cacheTime)
				_, err = r.ask(t, raw, "east")
				return err != nil
			})
			if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "the API server refuses the token") {
				t.Error(err)
			}
			t.Logf("refused %s after it was asked again, %d reviews", time.Since(began).Round(time.Millisecond), reviews.Load())
		})
	}
}

// withoutRight: a credential that may not create reviews is reported with the
// consequence, and works as soon as it may.
func withoutRight(t *testing.T, c *testkube.Cluster, ns string) {
	pod(t, c, ns, "reader")
	pod(t, c, ns, "caller")
	access := rest.AnonymousClientConfig(c.Config())
	access.BearerToken = request(t, c, ns, "reader", testkube.Issuer, false)
	r := newReviewTest(t, time.Now())
	if err := r.reviewers.SetCluster("east", access); err != nil {
		t.Fatal(err)
	}
	raw := request(t, c, ns, "caller", testkube.Audience, true)
	st := r.waitStatus(t, func(st ReviewerStatus) bool { return st.Problem != "" })
	for _, want := range []string{"may not create tokenreviews", "no first certificate", "grant create on tokenreviews"} {
		if !strings.Contains(st.Problem, want) {
			t.Errorf("status %q, want %q", st.Problem, want)
		}
	}
	if _, err := r.ask(t, raw, "east"); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
	c.Apply(t, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reviews-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, namespace: %[1]s, name: reader}]
`, ns))
	r.waitStatus(t, func(st ReviewerStatus) bool { return st.Problem == "" })
	if _, err := r.ask(t, raw, "east"); err != nil {
		t.Error(err)
	}
}

// gone: without the API server no new token counts. It recovers by itself.
func gone(t *testing.T, c *testkube.Cluster, ns string) {
	pod(t, c, ns, "patient")
	raw := request(t, c, ns, "patient", testkube.Audience, true)
	r := newReviewTest(t, time.Now())
	if err := r.reviewers.SetCluster("east", c.Config()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ask(t, raw, "east"); err != nil {
		t.Fatal(err)
	}
	c.Stop(t)
	if _, err := r.ask(t, raw, "east"); err != nil {
		t.Errorf("a token that was just reviewed: %v", err)
	}
	r.later(cacheTime)
	if _, err := r.ask(t, raw, "east"); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
	r.waitStatus(t, func(st ReviewerStatus) bool { return strings.Contains(st.Problem, "connection refused") })
	c.Restart(t)
	began := time.Now()
	until(t, "the token counts again", func() bool { _, err := r.ask(t, raw, "east"); return err == nil })
	t.Logf("the token counted %s after the API server had come back", time.Since(began).Round(time.Millisecond))
	r.waitStatus(t, func(st ReviewerStatus) bool { return st.Problem == "" })
}

// TestSubjectsOfNobody: tokens whose subject is not exactly a service account are
// refused, even if the cluster's key signed them.
func TestSubjectsOfNobody(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	issuer := api.issuer.Load()
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: issuer.Key(), KeyID: issuer.KeyID()}}, nil))(t)
	sign := func(sub any) string {
		return must(jwt.Signed(signer).Claims(map[string]any{
			"iss": issuer.URL(), "aud": []string{"istio-ca"}, "iat": start.Unix(), "exp": start.Add(time.Hour).Unix(), "sub": sub,
		}).Serialize())(t)
	}
	for _, sub := range []any{
		"system:serviceaccount", "system:serviceaccount:a", "system:serviceaccount:a:b:c", "system:serviceaccountX:a:b",
		"system:serviceaccount:", "system:serviceaccount::", "system:serviceaccount:a:", "system:serviceaccount::b",
		"system:serviceaccount:A:b", "system:serviceaccount:a:b/c", "system:serviceaccount:../a:b", "system:node:a", "admin", "",
		" system:serviceaccount:a:b", "system:serviceaccount:a:b\n", 7, nil,
		[]string{"system:serviceaccount:a:b"},
	} {
		if got, err := r.ask(t, sign(sub), "east"); status.Code(err) != codes.Unauthenticated {
			t.Errorf("sub %q: %+v, %v", sub, got, err)
		}
	}
	if n := api.reviews.Load(); n != 0 {
		t.Errorf("%d bad tokens came to the API server", n)
	}
	if got, err := r.ask(t, sign("system:serviceaccount:sample:helloworld"), "east"); err != nil || got != hello {
		t.Errorf("the good one: %+v, %v", got, err)
	}
}

// BenchmarkReviewed measures a token with a cached review.
func BenchmarkReviewed(b *testing.B) {
	api, r := newFaultyAPI(b), newReviewTest(b, start)
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		b.Fatal(err)
	}
	raw := api.token(b, time.Hour)
	if _, err := r.ask(b, raw, "east"); err != nil {
		b.Fatal(err)
	}
	md := metadata.Pairs("authorization", "Bearer "+raw, "clusterid", "east")
	for b.Loop() {
		if _, err := r.byToken(b.Context(), md); err != nil {
			b.Fatal(err)
		}
	}
}
