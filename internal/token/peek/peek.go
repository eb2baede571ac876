// Package peek reads what a token says of itself and verifies nothing: to tell
// a person, or a renewal, when it ends. It does no I/O.
package peek

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// MaxSize is the longest token that is looked at, in bytes. Kubernetes
	// makes tokens of about 1 KiB.
	MaxSize = 16 << 10
	// maxTime is the end of the year 9999: later times cannot be printed.
	maxTime = 253402300799
)

// Claims is what a token says of itself. Nothing of it is verified.
type Claims struct {
	Subject, Issuer string
	// Expiry is zero for a token without an end, as Kubernetes made them
	// before 1.24.
	Expiry time.Time
}

// Token reads a token in compact form without checking who made it. The error
// never holds the token.
func Token(raw string) (Claims, error) {
	if len(raw) > MaxSize {
		return Claims{}, fmt.Errorf("token: %d bytes long: want at most %d", len(raw), MaxSize)
	}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 || strings.ContainsFunc(raw, NotCompact) {
		return Claims{}, errors.New("token: not a JWT in compact form")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Claims{}, errors.New("token: its claims are not base64")
	}
	var p struct {
		Issuer  string   `json:"iss"`
		Subject string   `json:"sub"`
		Expiry  *float64 `json:"exp"`
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return Claims{}, errors.New("token: its claims are not those of a JWT")
	}
	out := Claims{Subject: p.Subject, Issuer: p.Issuer}
	if p.Expiry != nil {
		if *p.Expiry < 0 || *p.Expiry > maxTime {
			return Claims{}, fmt.Errorf("token: exp %.0f is not a time in seconds", *p.Expiry)
		}
		out.Expiry = time.Unix(int64(*p.Expiry), 0)
	}
	return out, nil
}

// NotCompact finds what a compact JWT cannot hold: base64 decoders skip line
// breaks, and one token should have one spelling.
func NotCompact(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}
