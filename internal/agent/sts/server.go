// Package sts exchanges tokens for local processes (RFC 8693): they send the token of the
// workload, and get a token that another system accepts.
package sts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/serving"
)

// Path is the path of the token endpoint.
const Path = "/token"

// Identifiers of RFC 8693.
const (
	GrantType       = "urn:ietf:params:oauth:grant-type:token-exchange"
	JWTType         = "urn:ietf:params:oauth:token-type:jwt"
	AccessTokenType = "urn:ietf:params:oauth:token-type:access_token"
)

// Bounds of requests.
const (
	maxBody     = 64 << 10 // bytes
	maxRunning  = 16       // exchanges at a time
	maxWait     = 15 * time.Second
	maxHeader   = 16 << 10 // bytes
	headerWait  = 5 * time.Second
	idleTimeout = time.Minute
)

// Request is a checked request.
type Request struct {
	SubjectToken, SubjectTokenType string
	// Other holds the optional parameters of RFC 8693 that the request has.
	Other url.Values
}

// optional are the parameters that a request may have.
var optional = []string{"resource", "audience", "scope", "requested_token_type", "actor_token", "actor_token_type"}

// Response is the response of an exchange.
type Response struct {
	AccessToken     string `json:"access_token"`
	IssuedTokenType string `json:"issued_token_type"`
	TokenType       string `json:"token_type"`
	ExpiresIn       int64  `json:"expires_in,omitempty"` // seconds
	Scope           string `json:"scope,omitempty"`
}

// Exchange exchanges a token. Its error must not contain a token.
type Exchange func(context.Context, Request) (Response, error)

// RefusedError is the error of an exchange that the other system refuses, with a code of
// RFC 6749.
type RefusedError struct{ Code, Description string }

func (e *RefusedError) Error() string { return e.Code + ": " + e.Description }

// Serve answers on listener, which must be on a loopback address, until ctx ends.
func Serve(ctx context.Context, listener net.Listener, exchange Exchange, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("POST "+Path, Handler(exchange, log))
	server := &http.Server{
		Handler:           http.NewCrossOriginProtection().Handler(mux),
		ReadHeaderTimeout: headerWait, ReadTimeout: headerWait, WriteTimeout: headerWait, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if err := serving.HTTP(ctx, server, listener); err != nil {
		return fmt.Errorf("exchange tokens on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Handler answers the requests for exchanges.
func Handler(exchange Exchange, log *slog.Logger) http.Handler {
	running := make(chan struct{}, maxRunning)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
		default:
			refuse(w, http.StatusServiceUnavailable, "temporarily_unavailable", "too many exchanges run")
			return
		}
		if !localtoken.IsLocal(r.Host) { // a page of a browser, whose name resolves to this machine
			refuse(w, http.StatusForbidden, "invalid_request", "send the request to localhost or a loopback address")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		req, err := parse(r)
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			refuse(w, http.StatusBadRequest, refused.Code, refused.Description)
			return
		}
		ctx, cancel := serving.WithTimeout(w, r, maxWait)
		defer cancel()
		answer, err := exchange(ctx, req)
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			refuse(w, http.StatusBadRequest, refused.Code, refused.Description)
			return
		}
		if err != nil {
			log.Warn("no token was exchanged", "error", err)
			refuse(w, http.StatusBadGateway, "server_error", "the exchange failed; the log of the agent has the reason")
			return
		}
		write(w, http.StatusOK, answer)
	})
}

// parse returns the request, or a *RefusedError.
func parse(r *http.Request) (Request, error) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/x-www-form-urlencoded" {
		return Request{}, &RefusedError{"invalid_request", "want the content type application/x-www-form-urlencoded"}
	}
	if err := r.ParseForm(); err != nil {
		return Request{}, &RefusedError{"invalid_request", fmt.Sprintf("want a form of at most %d KiB", maxBody>>10)}
	}
	form := r.PostForm
	for name, values := range form {
		if len(values) > 1 && name != "resource" && name != "audience" {
			return Request{}, &RefusedError{"invalid_request", "a parameter is repeated"}
		}
	}
	req := Request{SubjectToken: form.Get("subject_token"), SubjectTokenType: form.Get("subject_token_type"), Other: url.Values{}}
	switch {
	case form.Get("grant_type") != GrantType:
		return Request{}, &RefusedError{"unsupported_grant_type", "want grant_type=" + GrantType}
	case req.SubjectTokenType != JWTType && req.SubjectTokenType != AccessTokenType:
		return Request{}, &RefusedError{"invalid_request", "want subject_token_type=" + JWTType}
	case req.SubjectToken == "":
		return Request{}, &RefusedError{"invalid_request", "subject_token is missing"}
	case form.Get("actor_token") != "" && form.Get("actor_token_type") == "":
		return Request{}, &RefusedError{"invalid_request", "actor_token needs actor_token_type"}
	}
	for _, name := range optional {
		if values := form[name]; len(values) > 0 {
			req.Other[name] = values
		}
	}
	return req, nil
}

func refuse(w http.ResponseWriter, status int, code, description string) {
	write(w, status, struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}{code, description})
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that left needs no answer
}
