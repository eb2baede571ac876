package jwks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// keys is a fetched key set.
type keys struct {
	text    string // from keyset.Parse
	number  int
	leftOut []string
}

// fetch fetches a key set. Without a URL it first discovers the URL at the issuer.
func fetch(ctx context.Context, get func(context.Context, string) ([]byte, error), from snapshot.KeySource) (keys, error) {
	at := from.URL
	if at == "" {
		var err error
		if at, err = discover(ctx, get, from.Issuer); err != nil {
			return keys{}, err
		}
	}
	doc, err := get(ctx, at)
	if err != nil {
		return keys{}, err
	}
	got, err := parseKeys(doc)
	if err != nil {
		return keys{}, fmt.Errorf("the key set of %s %w", at, err)
	}
	return got, nil
}

func parseKeys(doc []byte) (keys, error) {
	text, leftOut, err := keyset.Parse(doc, keyset.Fetched)
	if err != nil {
		return keys{}, err
	}
	out := keys{text: text}
	for _, why := range leftOut {
		out.leftOut = append(out.leftOut, why.Error())
	}
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		return keys{}, err
	}
	out.number = len(set.Keys)
	return out, nil
}

// discover returns the URL of the key set of an issuer, by OpenID Connect Discovery.
func discover(ctx context.Context, get func(context.Context, string) ([]byte, error), issuer string) (string, error) {
	at := strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration"
	doc, err := get(ctx, at)
	if err != nil {
		return "", err
	}
	var config struct {
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(doc, &config); err != nil {
		return "", fmt.Errorf("%s is not a configuration of OpenID Connect", at)
	}
	u, err := url.Parse(config.JWKSURI)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%s: jwks_uri %.200q is not a URL of http or https", at, config.JWKSURI)
	case u.Scheme == "http" && strings.HasPrefix(issuer, "https:"):
		return "", fmt.Errorf("%s: jwks_uri is without TLS, unlike the issuer", at)
	}
	return config.JWKSURI, nil
}

// Getter returns a Config.Get over a client that bounds the size of documents and refuses
// redirects, as dial.Guard.Client does.
func Getter(client *http.Client) func(context.Context, string) ([]byte, error) {
	return func(ctx context.Context, at string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Accept", "application/json")
		resp, err := client.Do(req)
		if inner, ok := errors.AsType[*url.Error](err); ok {
			return nil, inner.Err // without the URL, which the log has
		}
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s answers %s", req.URL.Host, resp.Status)
		}
		return io.ReadAll(resp.Body)
	}
}
