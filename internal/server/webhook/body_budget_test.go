package webhook

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// TestBodyBudget: when there is no room, the source that holds the most loses its largest request.
func TestBodyBudget(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32")
	budget := newBodyBudget(10 * requestCost)
	ended := map[string]bool{}
	hold := func(name string, from netip.Prefix) *heldRequest {
		return budget.hold(from, func() { ended[name] = true })
	}
	small, large, other := hold("small", a), hold("large", a), hold("other", b)
	if !budget.grow(large, 5*requestCost) || !budget.grow(other, requestCost) || len(ended) != 0 {
		t.Fatalf("ended %v although there is room", ended)
	}
	if !budget.grow(other, 3*requestCost) || !ended["large"] || len(ended) != 1 {
		t.Fatalf("ended %v, want the largest of the source with the most", ended)
	}
	if budget.grow(large, 1) || !budget.grow(small, 1) {
		t.Error("the request that lost its room goes on, or another one does not")
	}
	if budget.grow(other, 10*requestCost) || !ended["other"] {
		t.Error("a request that needs more than all has room")
	}
	for _, r := range []*heldRequest{small, large, other} {
		budget.release(r)
	}
	if budget.used != 0 || len(budget.requests) != 0 || len(budget.sources) != 0 {
		t.Errorf("the budget still holds something: %+v", budget)
	}
}

// TestSlowRequestsEnd: a request whose body never ends holds no slot, and ends.
func TestSlowRequestsEnd(t *testing.T) {
	h, _ := testHandler(t)
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), maxTime)
		defer cancel()
		context.AfterFunc(ctx, func() { _ = write.CloseWithError(context.DeadlineExceeded) }) // as a server's read deadline
		slow := httptest.NewRequestWithContext(ctx, http.MethodPost, "/inject", read)
		slow.Header.Set("Content-Type", "application/json")
		w, done := httptest.NewRecorder(), make(chan struct{})
		go func() { defer close(done); h.ServeHTTP(w, slow) }()
		_, _ = io.WriteString(write, "{")
		for range 3 * maxReviews {
			if got := post(h, "/inject", review("Pod", pod)); got.Code != http.StatusOK {
				t.Fatalf("beside a slow body: %d %s", got.Code, got.Body)
			}
		}
		<-done
		if w.Code == http.StatusOK {
			t.Errorf("a body that breaks off is accepted: %s", w.Body)
		}
	})
}

// TestWorkEndsWithTheRequest: the decision gets the context of the request.
func TestWorkEndsWithTheRequest(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	h := Handler(Config{
		Converter: &source.Converter{Cluster: "cluster1"}, FromAPIServer: func(*http.Request) bool { return true },
		Findings: func(ctx context.Context, _ snapshot.Object) []string {
			leave()
			<-ctx.Done()
			return nil
		},
		Done: func(string, string, metav1.GroupVersionKind) {}, Log: slog.New(slog.DiscardHandler),
	})
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/validate", strings.NewReader(review("Gateway",
		`{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g", "namespace": "sample"}, "spec": {"selector": {"a": "b"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}}`)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// TestUnknownCallersLearnNothing: only an API server gets what other objects show about an object.
func TestUnknownCallersLearnNothing(t *testing.T) {
	t.Parallel()
	h, _ := testHandler(t)
	body := review("Gateway", `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "found", "namespace": "sample"}, "spec": {"selector": {"a": "b"}, "nosuch": 1, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}}`)
	for from, finds := range map[string]bool{"192.0.2.1:5": true, "10.0.0.1:5": false} {
		r := httptest.NewRequest(http.MethodPost, "/validate", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); strings.Contains(w.Body.String(), "IST0101") != finds || !strings.Contains(w.Body.String(), "nosuch") {
			t.Errorf("%s: %s", from, w.Body)
		}
	}
}

// TestJSONValues: the number of values is not underestimated by what texts contain.
func TestJSONValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{}`: 1, `{"a": [1, 2, {"b": 3}]}`: 5, `"{[,\"{[,"`: 0, `{"\\": {}}`: 2, `["\\\"[", {}]`: 3,
	} {
		if got := jsonValues([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	h, _ := testHandler(t)
	if w := post(h, "/inject", review("Pod", `{"x": [`+strings.Repeat("1,", maxValues)+`1]}`)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "at most 500000 are accepted") {
		t.Errorf("too many values: %d %s", w.Code, w.Body)
	}
}
