package probe

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestKubelet: the kubelet gets the status and the beginning of the body of the application,
// which gets no more of the kubelet's request than its user agent.
func TestKubelet(t *testing.T) {
	var got *http.Request
	app := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "http://203.0.113.1/", http.StatusFound)
		case "/bad":
			http.Error(w, "not yet", http.StatusTeapot)
		case "/large":
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	defer app.Close()
	at := func(path string) url.URL {
		u, err := url.Parse(app.URL + path)
		check(t, err)
		return *u
	}
	refused, err := url.Parse("http://" + nobody(t) + "/x?key=secret")
	check(t, err)
	http1 := func(u url.URL) Kubelet { return Kubelet{Timeout: time.Minute, URL: u} }
	handler := Handler(map[string]Kubelet{
		"/app-health/a/livez":    {Timeout: time.Minute, URL: at("/good?x=1"), Header: http.Header{"Host": {"app.test"}, "X-Key": {"a"}}},
		"/app-health/a/readyz":   http1(at("/bad")),
		"/app-health/a/startupz": http1(at("/moved")),
		"/app-health/b/livez":    http1(at("/large")),
		"/app-health/c/livez":    http1(*refused),
		"/app-health/d/livez":    {Timeout: soon, URL: url.URL{Scheme: "http", Host: silent(t)}},
		"/app-health/e/livez":    {Timeout: time.Minute, Check: func(context.Context) error { return nil }},
		"/app-health/f/livez":    {Timeout: time.Minute, Check: func(context.Context) error { return errors.New("NOT_SERVING") }},
	})
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/app-health/a/livez":    {200, ""},
		"/app-health/a/readyz":   {418, "not yet\n"},
		"/app-health/a/startupz": {200, ""},
		"/app-health/b/livez":    {200, string(make([]byte, maxKubeletBody))},
		"/app-health/c/livez":    {500, "connection refused"},
		"/app-health/d/livez":    {500, "no answer in time"},
		"/app-health/e/livez":    {200, ""},
		"/app-health/f/livez":    {500, "NOT_SERVING"},
		"/app-health/none/livez": {400, "app prober config does not exists for /app-health/none/livez"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		r.Header = http.Header{"User-Agent": {"kube-probe/1.36"}, "Authorization": {"Bearer x"}}
		handler.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != want.status || !strings.Contains(body, want.body) || len(body) > maxKubeletBody || strings.Contains(body, "secret") {
			t.Errorf("%s: %d %.200q, want %d %.200q", path, w.Code, body, want.status, want.body)
		}
		if path == "/app-health/a/livez" &&
			(got.URL.String() != "/good?x=1" || got.Host != "app.test" || got.Header.Get("X-Key") != "a" ||
				got.UserAgent() != "kube-probe/1.36" || got.Header.Get("Authorization") != "") {
			t.Errorf("the application got %s of %s with %v", got.URL, got.Host, got.Header)
		}
	}
	for sent, want := range map[string]string{"curl/8": userAgent, "kube-probe/1.36": "kube-probe/1.36", "kube-probe/1 bad": userAgent, "": userAgent} {
		r := httptest.NewRequest(http.MethodGet, "/app-health/a/livez", http.NoBody)
		r.Header = http.Header{"User-Agent": {sent}, "Accept": {"image/png"}}
		handler.ServeHTTP(httptest.NewRecorder(), r)
		if got.UserAgent() != want || got.Header.Get("Accept") != "*/*" {
			t.Errorf("%q: the application got %v", sent, got.Header)
		}
	}
}
