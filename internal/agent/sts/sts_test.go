package sts

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/token"
)

const form = "application/x-www-form-urlencoded"

func send(exchange Exchange, contentType, body string) (status int, answer map[string]any) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	r.Host = "localhost:15463"
	Handler(exchange, slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	_ = json.Unmarshal(w.Body.Bytes(), &answer)
	return w.Code, answer
}

func valid(more string) string {
	return url.Values{"grant_type": {GrantType}, "subject_token": {"the.workload's.token"}, "subject_token_type": {JWTType}}.Encode() + more
}

// TestRequests: only requests of RFC 8693 within bounds reach the exchange, with the
// parameters that it defines.
func TestRequests(t *testing.T) {
	var got Request
	exchange := func(_ context.Context, r Request) (Response, error) {
		got = r
		return Response{AccessToken: "other", TokenType: "Bearer", IssuedTokenType: AccessTokenType, ExpiresIn: 60}, nil
	}
	for name, tc := range map[string]struct {
		contentType, body string
		status            int
		want              string // the error, or the token
	}{
		"good":            {form, valid("&audience=a&audience=b&scope=s&unknown=x"), 200, "other"},
		"charset":         {form + "; charset=utf-8", valid(""), 200, "other"},
		"access token":    {form, strings.Replace(valid(""), url.QueryEscape(JWTType), url.QueryEscape(AccessTokenType), 1), 200, "other"},
		"JSON":            {"application/json", `{}`, 400, "invalid_request"},
		"no type":         {"", valid(""), 400, "invalid_request"},
		"another grant":   {form, strings.Replace(valid(""), url.QueryEscape(GrantType), "password", 1), 400, "unsupported_grant_type"},
		"no grant":        {form, "subject_token=a", 400, "unsupported_grant_type"},
		"another type":    {form, strings.Replace(valid(""), url.QueryEscape(JWTType), "saml", 1), 400, "invalid_request"},
		"no token":        {form, strings.Replace(valid(""), "the.workload%27s.token", "", 1), 400, "invalid_request"},
		"two tokens":      {form, valid("&subject_token=b"), 400, "invalid_request"},
		"actor of a type": {form, valid("&actor_token=a&actor_token_type=" + url.QueryEscape(JWTType)), 200, "other"},
		"actor":           {form, valid("&actor_token=a"), 400, "invalid_request"},
		"large":           {form, valid("&x=" + strings.Repeat("a", maxBody)), 400, "invalid_request"},
		"broken":          {form, "%zz", 400, "invalid_request"},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := send(exchange, tc.contentType, tc.body)
			if status != tc.status || answer["error"] != tc.want && answer["access_token"] != tc.want {
				t.Errorf("%d %v, want %d %s", status, answer, tc.status, tc.want)
			}
			if name == "good" && (got.SubjectToken != "the.workload's.token" || got.Other.Encode() != "audience=a&audience=b&scope=s") {
				t.Errorf("exchanged %+v", got)
			}
		})
	}
	status, answer := send(func(context.Context, Request) (Response, error) { return Response{}, errors.New("down") }, form, valid(""))
	if status != http.StatusBadGateway || answer["error"] != "server_error" {
		t.Errorf("an exchange that fails: %d %v", status, answer)
	}
}

// TestHost: a page of a browser whose name resolves to this machine exchanges no token.
func TestHost(t *testing.T) {
	exchange := func(context.Context, Request) (Response, error) { return Response{AccessToken: "other"}, nil }
	for host, want := range map[string]int{
		"localhost:15463": 200, "localhost": 200, "127.0.0.1:15463": 200, "[::1]:15463": 200, "127.77.0.9": 200,
		"rebound.test:15463": 403, "rebound.test": 403, "10.0.0.1:15463": 403, "localhost.rebound.test": 403, "": 403,
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(valid("")))
		r.Header.Set("Content-Type", form)
		r.Host = host
		Handler(exchange, slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("host %q: status %d, want %d", host, w.Code, want)
		}
	}
}

// TestEndpoint: the token endpoint gets the parameters, and its answer is checked.
func TestEndpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		body   string
		want   string // a part of the answer
	}{
		"good":     {200, `{"access_token":"a","token_type":"Bearer","expires_in":60,"refresh_token":"secret"}`, `"expires_in":60`},
		"refused":  {400, `{"error":"invalid_target","error_description":"no such audience"}`, `"error":"invalid_target"`},
		"no error": {400, `<html>`, "server_error"},
		"down":     {503, `secret`, "server_error"},
		"moved":    {302, ``, "server_error"},
		"junk":     {200, `secret`, "server_error"},
		"empty":    {200, `{}`, "server_error"},
		"endless":  {200, strings.Repeat(" ", 2*maxAnswer), "server_error"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := r.ParseForm(); err != nil || r.PostForm.Get("audience") != "a" || r.PostForm.Get("subject_token") == "" || r.PostForm.Get("grant_type") != GrantType {
					t.Errorf("asked for %v, %v", r.PostForm, err)
				}
				w.Header().Set("Location", "http://203.0.113.1/")
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			}))
			defer server.Close()
			endpoint, err := url.Parse(server.URL + "/token")
			if err != nil {
				t.Fatal(err)
			}
			exchange, err := Endpoint(*endpoint, "")
			if err != nil {
				t.Fatal(err)
			}
			_, answer := send(exchange, form, valid("&audience=a"))
			text, err := json.Marshal(answer)
			if err != nil || !strings.Contains(string(text), tc.want) || strings.Contains(string(text), "secret") {
				t.Errorf("got %s, want %s", text, tc.want)
			}
		})
	}
	if _, err := Endpoint(url.URL{Scheme: "https", Host: "a"}, "none"); err == nil {
		t.Error("roots that do not exist are accepted")
	}
}

// TestFile: the file is read for each exchange, and an expired token is never handed out.
func TestFile(t *testing.T) {
	issuer, err := token.GenerateIssuer("https://issuer.test")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	raw, err := issuer.Create(token.Claims{Namespace: "a", ServiceAccount: "b", Audiences: []string{"c"}, TTL: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "token")
	exchange := File(path, func() time.Time { return now.Add(30 * time.Minute) })
	for text, want := range map[string]string{"": "", "opaque\n": "opaque", raw: raw} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := exchange(t.Context(), Request{})
		if (err == nil) != (want != "") || got.AccessToken != want {
			t.Errorf("%.20q: got %+v, %v", text, got, err)
		}
		if text == raw && (got.ExpiresIn > 1800 || got.ExpiresIn < 1790) {
			t.Errorf("expires in %d s, want half an hour", got.ExpiresIn)
		}
	}
	if err := os.WriteFile(path, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	late := File(path, func() time.Time { return now.Add(2 * time.Hour) })
	if _, err := late(t.Context(), Request{}); err == nil || strings.Contains(err.Error(), raw) {
		t.Errorf("an expired token: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := exchange(t.Context(), Request{}); err == nil {
		t.Error("a token that others can read is handed out")
	}
}

// FuzzRequest: no request makes the server panic, and what passes has a token.
func FuzzRequest(f *testing.F) {
	f.Add(form, valid("&audience=a"))
	f.Add(form+"; charset=utf-8", "grant_type=%")
	f.Add("application/json", "{}")
	f.Fuzz(func(t *testing.T, contentType, body string) {
		passed := false
		status, _ := send(func(_ context.Context, r Request) (Response, error) {
			if passed = true; r.SubjectToken == "" {
				t.Error("an exchange without a token")
			}
			return Response{AccessToken: "a"}, nil
		}, contentType, body)
		if (status == http.StatusOK) != passed {
			t.Errorf("status %d, exchanged %v", status, passed)
		}
	})
}
