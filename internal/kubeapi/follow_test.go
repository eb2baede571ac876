package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestFollow: what is listed and what changes is told of, and a fault once, until
// it is over.
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
			return
		}
		if q := r.URL.Query(); q.Get("labelSelector") != "x=y" || q.Get("watch") == "true" && q.Get("resourceVersion") != "7" {
			t.Errorf("asked for %s", r.URL)
		}
		answers[n](w)
		n++
	}))
	defer server.Close()
	c, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	tell := func(what string) { told = append(told, what) }
	c.Secrets("ns").Follow(ctx, metav1.ListOptions{LabelSelector: "x=y"}, Follower[*corev1.Secret, *corev1.SecretList]{
		List: func(l *corev1.SecretList) { tell("list " + l.Items[0].Name) },
		Set:  func(s *corev1.Secret) { tell("set " + s.Name) },
		Gone: func(s *corev1.Secret) { tell("gone " + s.Name) },
		Lost: func(err error) { tell("lost: " + err.Error()) },
		Back: func() { tell("back") },
	})
	want := []string{
		`lost: list secrets: an error on the server ("broken") has prevented the request from succeeding (get secrets)`,
		"back", "list a", "set b", "gone a", "lost: watch secrets: too old", "back", "list a",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q\nwant %q", told, want)
	}
}
