package sts

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/token"
)

const (
	maxAnswer   = 64 << 10 // bytes of a response or a file with a token
	maxRootFile = 1 << 20  // bytes
	// fileLife is how long a token of a file counts as valid, if it does not state its end.
	fileLife = time.Minute
)

// Endpoint exchanges tokens at the token endpoint of an OAuth server. rootFile holds the roots
// of its certificate, PEM; empty means the roots of the operating system.
func Endpoint(endpoint url.URL, rootFile string) (Exchange, error) {
	var config *tls.Config
	if rootFile != "" {
		roots, err := files.Read(rootFile, maxRootFile)
		if err != nil {
			return nil, fmt.Errorf("roots of the token endpoint: %w", err)
		}
		if config, err = dial.TLSConfig(roots, endpoint.Hostname()); err != nil {
			return nil, fmt.Errorf("roots of the token endpoint: %s: %w", rootFile, err)
		}
	}
	client := dial.HTTPClient(maxWait, config)
	return func(ctx context.Context, r Request) (_ Response, err error) {
		form := url.Values{"grant_type": {GrantType}, "subject_token": {r.SubjectToken}, "subject_token_type": {r.SubjectTokenType}}
		maps.Copy(form, r.Other)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.String(), strings.NewReader(form.Encode()))
		if err != nil {
			return Response{}, fmt.Errorf("ask the token endpoint: %w", err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Accept", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return Response{}, fmt.Errorf("ask the token endpoint: %w", err)
		}
		defer func() { err = errors.Join(err, resp.Body.Close()) }()
		return answer(resp)
	}, nil
}

// answer reads the response of a token endpoint.
func answer(resp *http.Response) (Response, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return Response{}, fmt.Errorf("read the answer of the token endpoint: %w", err)
	}
	if len(body) > maxAnswer {
		return Response{}, fmt.Errorf("the token endpoint sent more than %d KiB", maxAnswer>>10)
	}
	if resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusUnauthorized {
		var refused struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}
		if json.Unmarshal(body, &refused) == nil && refused.Error != "" {
			return Response{}, &RefusedError{refused.Error, refused.Description}
		}
	}
	if resp.StatusCode != http.StatusOK {
		return Response{}, fmt.Errorf("the token endpoint answered %s", resp.Status)
	}
	var out Response
	if err := json.Unmarshal(body, &out); err != nil {
		return Response{}, errors.New("the token endpoint answered no JSON object of an exchange") // which may hold a token
	}
	if out.AccessToken == "" || out.TokenType == "" {
		return Response{}, errors.New("the answer of the token endpoint lacks access_token or token_type")
	}
	if out.IssuedTokenType == "" {
		out.IssuedTokenType = AccessTokenType
	}
	return out, nil
}

// File answers with the token in a file, which another program renews, whatever the request.
func File(path string, now func() time.Time) Exchange {
	return func(context.Context, Request) (Response, error) {
		data, err := files.ReadSecret(path, maxAnswer)
		if err != nil {
			return Response{}, fmt.Errorf("token to hand out: %w", err)
		}
		raw := string(bytes.TrimSpace(data))
		if raw == "" {
			return Response{}, fmt.Errorf("the token file %s is empty", path)
		}
		life := fileLife
		if t, err := token.ParseUnverified(raw); err == nil && !t.Expires.IsZero() {
			if life = t.Expires.Sub(now()); life <= 0 {
				return Response{}, fmt.Errorf("the token in %s expired at %s", path, t.Expires.UTC().Format(time.RFC3339))
			}
		}
		return Response{AccessToken: raw, IssuedTokenType: AccessTokenType, TokenType: "Bearer", ExpiresIn: int64(life / time.Second)}, nil
	}
}
