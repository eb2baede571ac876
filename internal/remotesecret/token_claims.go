package remotesecret

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// maxTokenSize is the size limit of tokens in bytes. Tokens of Kubernetes have
	// about 1 KiB.
	maxTokenSize = 16 << 10
	// maxTime is the end of the year 9999: later times cannot be printed.
	maxTime = 253402300799
)

// TokenClaims are unverified claims of a token.
type TokenClaims struct {
	Subject, Issuer string
	// Expiry is zero for a token without an end, such as Kubernetes before 1.24 made.
	Expiry time.Time
	// IssuedAt is zero if it is missing.
	IssuedAt time.Time
	// Secret is the Secret in the namespace of the service account that the token is
	// bound to, if any.
	Secret string
}

// ReadToken parses the claims of a token in compact form without verifying it. Errors
// never contain the token.
func ReadToken(raw string) (TokenClaims, error) {
	if len(raw) > maxTokenSize {
		return TokenClaims{}, fmt.Errorf("token: %d bytes long: want at most %d", len(raw), maxTokenSize)
	}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 || strings.ContainsFunc(raw, notCompact) {
		return TokenClaims{}, errors.New("token: not a JWT in compact form")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return TokenClaims{}, errors.New("token: its claims are not base64")
	}
	var p struct {
		Issuer   string   `json:"iss"`
		Subject  string   `json:"sub"`
		Expiry   *float64 `json:"exp"`
		IssuedAt *float64 `json:"iat"`
		// The first claim is in tokens of token Secrets, the second in requested
		// tokens that are bound to a Secret.
		TokenSecret string `json:"kubernetes.io/serviceaccount/secret.name"`
		Kubernetes  struct {
			Secret struct {
				Name string `json:"name"`
			} `json:"secret"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return TokenClaims{}, errors.New("token: its claims are not those of a JWT")
	}
	out := TokenClaims{Subject: p.Subject, Issuer: p.Issuer, Secret: cmp.Or(p.TokenSecret, p.Kubernetes.Secret.Name)}
	for _, claim := range []struct {
		name  string
		value *float64
		to    *time.Time
	}{{"exp", p.Expiry, &out.Expiry}, {"iat", p.IssuedAt, &out.IssuedAt}} {
		if claim.value == nil {
			continue
		}
		if *claim.value < 0 || *claim.value > maxTime {
			return TokenClaims{}, fmt.Errorf("token: %s %.0f is not a time in seconds", claim.name, *claim.value)
		}
		*claim.to = time.Unix(int64(*claim.value), 0)
	}
	return out, nil
}

// notCompact reports whether a compact JWT cannot contain r. Base64 decoders would skip
// line breaks.
func notCompact(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}
