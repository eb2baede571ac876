package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
	"github.com/meshctl/meshctl/test/harness"
)

// faultyAPI is an API server with faults. kubernetes_test.go tests a real one.
type faultyAPI struct {
	*httptest.Server
	issuer  atomic.Pointer[token.Issuer]
	fetches atomic.Int64
	reviews atomic.Int64
	// fault, if set, answers requests instead of the server.
	fault atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	// answer may change the status of a review.
	answer func(*authenticationv1.TokenReviewStatus)
}

func newFaultyAPI(t testing.TB) *faultyAPI {
	t.Helper()
	api := &faultyAPI{}
	api.issuer.Store(must(token.GenerateIssuer("https://kubernetes.default.svc"))(t))
	api.Server = httptest.NewUnstartedServer(http.HandlerFunc(api.serve))
	api.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	api.StartTLS()
	t.Cleanup(api.Close)
	return api
}

func (api *faultyAPI) serve(w http.ResponseWriter, req *http.Request) {
	reply := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	review := strings.HasSuffix(req.URL.Path, "/tokenreviews")
	switch {
	case review:
		api.reviews.Add(1)
	case req.URL.Path == "/openid/v1/jwks":
		api.fetches.Add(1)
	}
	if fault := api.fault.Load(); fault != nil && (*fault)(w, req) {
		return
	}
	issuer := api.issuer.Load()
	switch {
	case req.URL.Path == "/.well-known/openid-configuration":
		reply(map[string]string{"issuer": issuer.URL()})
	case req.URL.Path == "/openid/v1/jwks":
		reply(issuer.JWKS())
	case strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews"):
		reply(authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Status:   authorizationv1.SubjectAccessReviewStatus{Allowed: true},
		})
	case review:
		var in authenticationv1.TokenReview
		body, _ := io.ReadAll(req.Body)
		scheme := runtime.NewScheme()
		_ = authenticationv1.AddToScheme(scheme)
		if _, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(body, nil, &in); err != nil || len(in.Spec.Audiences) == 0 {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		in.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: in.Spec.Audiences[:1],
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:sample:helloworld"},
		}
		if api.answer != nil {
			api.answer(&in.Status)
		}
		in.APIVersion, in.Kind = "authentication.k8s.io/v1", "TokenReview"
		reply(in)
	default:
		http.NotFound(w, req)
	}
}

func (api *faultyAPI) setFault(f func(http.ResponseWriter, *http.Request) bool) {
	if f == nil {
		api.fault.Store(nil)
		return
	}
	api.fault.Store(&f)
}

func (api *faultyAPI) access() *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	return &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

func (api *faultyAPI) token(t testing.TB, ttl time.Duration) string {
	t.Helper()
	return must(api.issuer.Load().Create(token.Claims{
		Namespace: "sample", ServiceAccount: "helloworld", Audiences: []string{"istio-ca"}, TTL: ttl,
	}, start))(t)
}

// reviewTest is an authenticator with Reviewers, and its clock.
type reviewTest struct {
	*Authenticator
	reviewers *Reviewers
	now       atomic.Pointer[time.Time]
	counts    sync.Map // result → *atomic.Int64
	log       harness.LogBuffer
}

// newReviewTest starts the clock at the given time: real API servers use the real
// time.
func newReviewTest(t testing.TB, at time.Time) *reviewTest {
	t.Helper()
	w := newTestMesh(t)
	r := &reviewTest{}
	r.now.Store(&at)
	now := func() time.Time { return *r.now.Load() }
	ctx, cancel := context.WithCancel(t.Context())
	r.reviewers = NewReviewers(ctx, ReviewersConfig{
		Audiences: []string{"istio-ca"}, Now: now, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Reviewed: func(_ mesh.ClusterID, result string) {
			n, _ := r.counts.LoadOrStore(result, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		},
	})
	t.Cleanup(func() { cancel(); r.reviewers.Wait() })
	w.cfg.Tokens, w.cfg.Reviewers, w.cfg.Now = nil, r.reviewers, now
	r.Authenticator = must(New(w.cfg))(t)
	return r
}

func (r *reviewTest) later(d time.Duration) { at := r.now.Load().Add(d); r.now.Store(&at) }

func (r *reviewTest) count(result string) int64 {
	n, ok := r.counts.Load(result)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// ask authenticates a token as a gRPC handler does.
func (r *reviewTest) ask(t testing.TB, raw, cluster string) (mesh.Caller, error) {
	t.Helper()
	md := metadata.Pairs("authorization", "Bearer "+raw)
	if cluster != "" {
		md.Set("clusterid", cluster)
	}
	caller, err := r.byToken(t.Context(), md)
	if err != nil {
		return caller, &Error{errs: []error{err}}
	}
	return caller, nil
}

func (r *reviewTest) waitStatus(t testing.TB, want func(ReviewerStatus) bool) ReviewerStatus {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		st := r.reviewers.Status()
		if len(st) == 1 && want(st[0]) {
			return st[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("status stays %+v", st)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func known(st ReviewerStatus) bool { return st.Issuer != "" }

var hello = caller("cluster.local", "sample", "helloworld", "east")

func TestReviewsAreCached(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	raw := api.token(t, time.Hour)
	want := func(what string, n int64) {
		t.Helper()
		for _, cluster := range []string{"east", "east", ""} {
			if c, err := r.ask(t, raw, cluster); err != nil || c != hello {
				t.Errorf("%s: %+v, %v", what, c, err)
			}
		}
		if got := api.reviews.Load(); got != n {
			t.Errorf("%s: %d reviews, want %d", what, got, n)
		}
	}
	want("at first", 2) // with and without cluster header
	r.later(cacheTime - time.Nanosecond)
	want("just before the end", 2)
	r.later(time.Nanosecond)
	want("after 10 s", 4)
	if n := r.count("accepted"); n != 4 {
		t.Errorf("%d reviews are counted", n)
	}
}

// TestReviewCountsFromItsBeginning: the result of a slow review is as old as the
// start of the review.
func TestReviewCountsFromItsBeginning(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	api.answer = func(*authenticationv1.TokenReviewStatus) {
		if api.reviews.Load() == 1 {
			r.later(4 * time.Second)
		}
	}
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	raw := api.token(t, time.Hour)
	for _, at := range []time.Duration{0, 6*time.Second - 1, 1} {
		r.later(at)
		if _, err := r.ask(t, raw, "east"); err != nil {
			t.Fatal(err)
		}
	}
	if n := api.reviews.Load(); n != 2 {
		t.Errorf("%d reviews, want 2: the second 10 s after the first began", n)
	}
}

func TestConcurrentReviewsAreMerged(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	asked, release := make(chan struct{}, 50), make(chan struct{})
	api.answer = func(*authenticationv1.TokenReviewStatus) { asked <- struct{}{}; <-release }
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	raw := api.token(t, time.Hour)
	var calls, begun sync.WaitGroup
	begun.Add(50)
	for range 50 {
		calls.Go(func() {
			begun.Done()
			if _, err := r.ask(t, raw, "east"); err != nil {
				t.Error(err)
			}
		})
	}
	<-asked
	// A caller that gives up does not disturb the others.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.byToken(gone, metadata.Pairs("authorization", "Bearer "+raw, "clusterid", "east")); !errors.Is(err, context.Canceled) {
		t.Errorf("caller that gave up: got %v", err)
	}
	begun.Wait()
	close(release)
	calls.Wait()
	// Some callers may have started after the first review ended.
	if n := api.reviews.Load(); n > 5 {
		t.Errorf("%d reviews of one token", n)
	}
}

// TestReviewsUnderWayAreBounded: the tokens of one namespace leave room for the reviews of others.
func TestReviewsUnderWayAreBounded(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	r.reviewers.cfg.reviewTimeout = time.Minute // TLS handshakes on a busy machine
	var running, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	api.answer = func(*authenticationv1.TokenReviewStatus) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == maxReviewsNamespace {
			once.Do(func() { close(full) })
		}
		<-full
	}
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	tokens := make([]string, 3*maxReviewsNamespace) // before a review waits for others, which it does not do for long
	for n := range tokens {
		tokens[n] = api.token(t, time.Hour+time.Duration(n)*time.Second)
	}
	var calls sync.WaitGroup
	for _, raw := range tokens {
		calls.Go(func() {
			if _, err := r.ask(t, raw, "east"); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if n := most.Load(); n != maxReviewsNamespace || maxReviewsNamespace >= maxReviews {
		t.Errorf("%d reviews were under way at once, want %d", n, maxReviewsNamespace)
	}
}

func TestAnswersOfReviews(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer func(*authenticationv1.TokenReviewStatus)
		want   string
	}{
		"refused": {func(s *authenticationv1.TokenReviewStatus) {
			*s = authenticationv1.TokenReviewStatus{Error: "[invalid bearer token,\n service account token has been invalidated]"}
		}, `refuses the token: "[invalid bearer token,\n service account`},
		"another account": {func(s *authenticationv1.TokenReviewStatus) {
			s.User.Username = "system:serviceaccount:istio-system:istiod"
		}, "says that the token belongs to \"system:serviceaccount:istio-system:istiod\""},
		"a person":         {func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "admin" }, "says that the token belongs to"},
		"no audience":      {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, "want one of"},
		"another audience": {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"https://kubernetes"} }, "want one of"},
		"a long error": {func(s *authenticationv1.TokenReviewStatus) {
			*s = authenticationv1.TokenReviewStatus{Error: strings.Repeat("x", 1000)}
		}, "refuses the token"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, r := newFaultyAPI(t), newReviewTest(t, start)
			api.answer = tt.answer
			if err := r.reviewers.SetCluster("east", api.access()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := r.ask(t, api.token(t, time.Hour), "east")
				if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 700 {
					t.Errorf("%v, want %q", err, tt.want)
				}
			}
			if n := r.count("refused"); n != 2 {
				t.Errorf("%d refusals counted: a refused token must not be kept", n)
			}
		})
	}
}

// TestFaultsOfTheAPIServer: callers may try again after a fault of the API server,
// and the status reports the fault until it is over.
func TestFaultsOfTheAPIServer(t *testing.T) {
	t.Parallel()
	failure := func(code int, reason string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"no"}`, reason, code)
			return true
		}
	}
	tests := map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		want  []string // of the status
	}{
		"forbidden":    {failure(403, "Forbidden"), []string{"grant create on tokenreviews", "no first certificate"}},
		"unauthorized": {failure(401, "Unauthorized"), []string{"give the cluster a credential that is valid"}},
		"unavailable":  {failure(503, "ServiceUnavailable"), []string{"check the API server"}},
		"reset":        {func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, []string{"check the API server"}},
		"redirect": {func(w http.ResponseWriter, req *http.Request) bool {
			http.Redirect(w, req, "https://169.254.169.254/", http.StatusTemporaryRedirect)
			return true
		}, []string{"which is not followed"}},
		"endless answer": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			for {
				if _, err := w.Write(bytes.Repeat([]byte{' '}, 1<<20)); err != nil {
					return true
				}
			}
		}, []string{"larger than"}},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "<html>")
			return true
		}, []string{"check the API server"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, r := newFaultyAPI(t), newReviewTest(t, start)
			if err := r.reviewers.SetCluster("east", api.access()); err != nil {
				t.Fatal(err)
			}
			r.waitStatus(t, func(st ReviewerStatus) bool { return known(st) && st.Problem == "" })
			raw := api.token(t, time.Hour)
			api.setFault(tt.fault)
			_, err := r.ask(t, raw, "east")
			if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), raw) {
				t.Errorf("%v, want Unavailable", err)
			}
			st := r.waitStatus(t, func(st ReviewerStatus) bool { return st.Problem != "" })
			for _, want := range tt.want {
				if !strings.Contains(st.Problem, want) {
					t.Errorf("status %q, want %q", st.Problem, want)
				}
			}
			if st.Since == nil || !st.Since.Equal(start) {
				t.Errorf("since %v", st.Since)
			}
			api.setFault(nil)
			r.waitStatus(t, func(st ReviewerStatus) bool {
				return st.Problem == "" && strings.Contains(r.log.String(), "reviewed again")
			})
			if _, err := r.ask(t, raw, "east"); err != nil {
				t.Error(err)
			}
			if got := r.log.String(); strings.Count(got, "cannot be reviewed") != 1 || strings.Count(got, "reviewed again") != 1 || strings.Contains(got, raw) {
				t.Errorf("log:\n%s", got)
			}
		})
	}
}

// TestKeysThatCannotBeReadAtFirst: tokens are reviewed as soon as the keys can be
// fetched, and not before.
func TestKeysThatCannotBeReadAtFirst(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	forbidden := func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true }
	api.setFault(forbidden)
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	st := r.waitStatus(t, func(st ReviewerStatus) bool { return st.Problem != "" })
	if !strings.Contains(st.Problem, "system:service-account-issuer-discovery") {
		t.Errorf("status %q", st.Problem)
	}
	for range 3 {
		if _, err := r.ask(t, api.token(t, time.Hour), "east"); status.Code(err) != codes.Unavailable {
			t.Errorf("%v, want Unavailable", err)
		}
	}
	if n := api.reviews.Load(); n != 0 {
		t.Errorf("%d reviews of tokens that nothing is known of", n)
	}
	api.setFault(nil)
	r.later(fetchRetry)
	if _, err := r.ask(t, api.token(t, time.Hour), "east"); err != nil {
		t.Error(err)
	}
}

// TestNewKeys: changed keys of a cluster are fetched, once a minute at most.
func TestNewKeys(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	r.waitStatus(t, known)
	old := api.token(t, time.Hour)
	api.issuer.Store(must(token.GenerateIssuer("https://new.example"))(t))
	fresh := api.token(t, time.Hour)
	for range 20 {
		if _, err := r.ask(t, fresh, "east"); status.Code(err) != codes.Unauthenticated {
			t.Errorf("just after the keys were read: %v", err)
		}
	}
	r.later(refetchInterval)
	if _, err := r.ask(t, fresh, "east"); err != nil {
		t.Error(err)
	}
	if _, err := r.ask(t, old, "east"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token of a key that is gone: %v", err)
	}
	if n := api.fetches.Load(); n != 2 {
		t.Errorf("keys were read %d times, want 2", n)
	}
	// While they cannot be fetched, the last good keys count.
	api.setFault(func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, "/jwks") {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	})
	r.later(refetchInterval)
	if _, err := r.ask(t, old, "east"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token of a key that is gone: %v", err)
	}
	if _, err := r.ask(t, fresh, "east"); err != nil {
		t.Errorf("the last good keys: %v", err)
	}
}

func TestClustersComeAndGo(t *testing.T) {
	t.Parallel()
	r := newReviewTest(t, start)
	if _, err := r.ask(t, "a.b.c", "east"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without clusters: %v", err)
	}
	east, west := newFaultyAPI(t), newFaultyAPI(t)
	west.issuer.Store(must(token.GenerateIssuer("https://west.example"))(t))
	for id, api := range map[mesh.ClusterID]*faultyAPI{"east": east, "west": west} {
		if err := r.reviewers.SetCluster(id, api.access()); err != nil {
			t.Fatal(err)
		}
	}
	raw := east.token(t, time.Hour)
	if c, err := r.ask(t, raw, ""); err != nil || c != hello {
		t.Errorf("without a cluster header: %+v, %v", c, err)
	}
	if _, err := r.ask(t, raw, "west"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token of another cluster: %v", err)
	}
	if _, err := r.ask(t, raw, "north"); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), `cluster "north"`) {
		t.Errorf("a cluster that is not known: %v", err)
	}
	// Another credential for the same cluster, with which the keys cannot
	// be fetched.
	east.setFault(func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, "/jwks") {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	})
	if err := r.reviewers.SetCluster("east", east.access()); err != nil {
		t.Fatal(err)
	}
	r.later(cacheTime)
	if _, err := r.ask(t, raw, "east"); err != nil {
		t.Errorf("after a change of the credential: %v", err)
	}
	if err := r.reviewers.SetCluster("east", &rest.Config{Host: "://"}); err == nil {
		t.Error("access that cannot be used is taken")
	}
	if _, err := r.ask(t, raw, "east"); err != nil {
		t.Errorf("after a change that is refused: %v", err)
	}
	r.reviewers.RemoveCluster("east")
	r.reviewers.RemoveCluster("east")
	if _, err := r.ask(t, raw, "east"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("after the cluster went: %v", err)
	}
	if st := r.reviewers.Status(); len(st) != 1 || st[0].Cluster != "west" {
		t.Errorf("status %+v", st)
	}
}

// TestRemovalEndsReviews: the removal of a cluster ends its requests.
func TestRemovalEndsReviews(t *testing.T) {
	t.Parallel()
	api, r := newFaultyAPI(t), newReviewTest(t, start)
	if err := r.reviewers.SetCluster("east", api.access()); err != nil {
		t.Fatal(err)
	}
	r.waitStatus(t, known)
	asked := make(chan struct{})
	api.setFault(func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, "/tokenreviews") {
			_, _ = io.Copy(io.Discard, req.Body) // the server only then sees that the caller has gone
			close(asked)
			<-req.Context().Done()
			return true
		}
		return false
	})
	done := make(chan error)
	go func() { _, err := r.ask(t, api.token(t, time.Hour), "east"); done <- err }()
	<-asked
	r.reviewers.RemoveCluster("east")
	if err := <-done; !errors.Is(err.(*Error).errs[0], context.Canceled) { //nolint:errorlint // ask returns one
		t.Errorf("the caller got %v", err)
	}
}

func FuzzDiscovery(f *testing.F) {
	for _, s := range []string{
		`{"issuer":"https://kubernetes.default.svc","jwks_uri":"https://10.0.0.1/openid/v1/jwks"}`,
		`{"issuer":""}`, `{"issuer":7}`, `[]`, `null`, ``, `{"issuer":"a","issuer":"b"}`, `{"Issuer":"x"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		issuer, err := parseDiscovery(doc)
		if (err == nil) != (issuer != "") || len(issuer) > 2048 {
			t.Fatalf("issuer %q, error %v", issuer, err)
		}
		if err == nil && !json.Valid(doc) {
			t.Fatalf("got issuer %q of a document that is not JSON", issuer)
		}
	})
}

func TestTokenOfSeveralClusters(t *testing.T) {
	t.Parallel()
	r := newReviewTest(t, start)
	api := newFaultyAPI(t)
	for _, id := range []mesh.ClusterID{"b", "a", "c"} {
		if err := r.reviewers.SetCluster(id, api.access()); err != nil {
			t.Fatal(err)
		}
	}
	var got []mesh.ClusterID
	for _, st := range r.reviewers.Status() {
		got = append(got, st.Cluster)
	}
	if !slices.Equal(got, []mesh.ClusterID{"a", "b", "c"}) {
		t.Errorf("status of %q", got)
	}
	for _, id := range got {
		for r.reviewers.get(id).keys.get() == nil {
			r.reviewers.get(id).refetch(t.Context())
		}
	}
	if _, err := r.ask(t, api.token(t, time.Hour), ""); err == nil || !strings.Contains(err.Error(), "must name one") {
		t.Errorf("a token of three clusters: %v", err)
	}
	if n := api.reviews.Load(); n != 0 {
		t.Errorf("%d reviews of a token whose cluster is not clear", n)
	}
}
