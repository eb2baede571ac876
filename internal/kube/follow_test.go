package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestFollow: differences to lists, changes and errors are delivered, each error once.
func TestFollow(t *testing.T) {
	t.Parallel()
	secret := func(name string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": %q}}`, name)
	}
	fault := func(w http.ResponseWriter) { http.Error(w, "broken", http.StatusInternalServerError) }
	list := func(w http.ResponseWriter) {
		fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "7"}, "items": [%s]}`, secret("a"))
	}
	answers := []func(http.ResponseWriter){
		fault, list,
		func(w http.ResponseWriter) {
			for _, e := range []string{
				`{"type": "ADDED", "object": ` + secret("b") + `}`, `{"type": "DELETED", "object": ` + secret("a") + `}`,
				`{"type": "ERROR", "object": {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "too old", "code": 410}}`,
			} {
				fmt.Fprintln(w, e)
			}
		},
		list,
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if n == len(answers) {
			cancel()
			<-r.Context().Done() // an answer would be one of a watch
			return
		}
		if q := r.URL.Query(); q.Get("labelSelector") != "x=y" || q.Get("watch") == "true" && q.Get("resourceVersion") != "7" {
			t.Errorf("asked for %s", r.URL)
		}
		answers[n](w)
		n++
	}))
	defer server.Close()
	c, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	record := func(what string) { calls = append(calls, what) }
	c.Secrets("ns").Follow(ctx, metav1.ListOptions{LabelSelector: "x=y"}, Follower[*corev1.Secret]{
		Set:    func(s *corev1.Secret) { record("set " + s.Name) },
		Gone:   func(_, name string) { record("gone " + name) },
		Listed: func() { record("listed") },
		Lost:   func(err error) { record("lost: " + err.Error()) },
		Back:   func() { record("back") },
	})
	want := []string{
		`lost: list secrets: an error on the server ("broken") has prevented the request from succeeding (get secrets)`,
		"set a", "listed", "back", "set b", "gone a", "lost: watch secrets: too old", "gone b", "set a", "listed",
	}
	if !slices.Equal(calls, want) {
		t.Errorf("got calls %q\nwant %q", calls, want)
	}
}

// TestFollowBacksOff: the backoff doubles when watches fail or end at once, and starts
// again after a watch that works.
func TestFollowBacksOff(t *testing.T) {
	t.Parallel()
	const forbidden = `{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}`
	for name, watch := range map[string]struct {
		code int
		body string
	}{"refused": {http.StatusForbidden, forbidden}, "ends at once": {http.StatusOK, ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const lasts = 10 * time.Minute
				var lists []time.Duration // after the start
				var works atomic.Bool
				start := time.Now()
				api := roundTrip(func(r *http.Request) *http.Response {
					switch {
					case r.URL.Query().Get("watch") == "":
						lists = append(lists, time.Since(start))
						return answered(http.StatusOK, `{"apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "7"}}`)
					case works.CompareAndSwap(true, false):
						return answered(http.StatusOK, `{"type": "ADDED", "object": {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}}`)
					}
					return answered(watch.code, watch.body)
				})
				c, err := NewClient(&rest.Config{Host: "http://api", Transport: api})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), lasts)
				defer cancel()
				time.AfterFunc(lasts/2, func() { works.Store(true) })
				lost := 0
				c.Secrets("ns").Follow(ctx, metav1.ListOptions{}, Follower[*corev1.Secret]{
					Set: func(*corev1.Secret) {}, Gone: func(string, string) {}, Listed: func() {},
					Lost: func(error) { lost++ }, Back: func() {}, Jitter: func() float64 { return 0 },
				})
				if most := int(lasts / (lastRetry / 2)); len(lists) > most+8 {
					t.Errorf("listed %d times in %s", len(lists), lasts)
				}
				soon := 0
				for i := range lists[1:] {
					if lists[i+1]-lists[i] < lastRetry/2 && lists[i] > lasts/2 {
						soon++
					}
				}
				if soon == 0 {
					t.Error("a watch that worked shortens no wait")
				}
				if lost > 2 {
					t.Errorf("Lost was called %d times, want at most 2", lost)
				}
			})
		})
	}
}

// roundTrip is a transport that calls a function.
type roundTrip func(*http.Request) *http.Response

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// answered returns a response in JSON.
func answered(code int, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}
