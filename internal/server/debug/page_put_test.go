package debug

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestChange: who may set a page, and to what.
func TestChange(t *testing.T) {
	level := "info"
	cfg := testConfig()
	cfg.Pages = map[string]Page{"level": {Make: func(context.Context, Query) (any, error) { return level, nil }}}
	cfg.Changes = map[string]Change{"level": func(text string) error {
		if text == "loud" {
			return errors.New("there is no level loud")
		}
		level = text
		return nil
	}}
	h := New(cfg).Handler(HTTPConfig{Authenticate: authenticate, Network: true, Log: slog.New(slog.DiscardHandler)})
	for _, tc := range []struct {
		name, page, token, text string
		want                    int
		body                    string
	}{
		{"nobody", "level", "", "debug", 401, ""},
		{"a namespace that may look", "level", "mesh.example/observers", "debug", 403, ""},
		{"another namespace", "level", "mesh.example/apps", "debug", 403, ""},
		{"another mesh", "level", "foreign.example/istio-system", "debug", 403, ""},
		{"a page that only shows", "syncz", "mesh.example/istio-system", "debug", 405, ""},
		{"a text that is refused", "level", "mesh.example/istio-system", "loud", 400, "there is no level loud\n"},
		{"a long text", "level", "mesh.example/istio-system", strings.Repeat("x", maxChange+1), 413, ""},
		{"the system namespace", "level", "mesh.example/istio-system", "warn", 200, "\"warn\"\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := level
			r := httptest.NewRequest(http.MethodPut, "/debug/"+tc.page, strings.NewReader(tc.text))
			if tc.token != "" {
				r.Header.Set("Authorization", "Bearer "+tc.token)
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != tc.want || tc.body != "" && w.Body.String() != tc.body {
				t.Errorf("status %d, want %d: %s", w.Code, tc.want, w.Body)
			}
			if changed := level != before; changed != (tc.want == http.StatusOK) {
				t.Errorf("the level is %s, it was %s", level, before)
			}
		})
	}
}
