package token

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Peeked is what a token says of itself. Nothing of it is verified.
type Peeked struct {
	Subject, Issuer string
	// Expiry is zero for a token without an end, as Kubernetes made them
	// before 1.24.
	Expiry time.Time
}

// Peek reads a token in compact form without checking who made it, to tell a
// person when it ends. The error never holds the token.
func Peek(raw string) (Peeked, error) {
	if len(raw) > MaxSize {
		return Peeked{}, fmt.Errorf("token: %d bytes long: want at most %d", len(raw), MaxSize)
	}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 || strings.ContainsFunc(raw, notCompact) {
		return Peeked{}, errors.New("token: not a JWT in compact form")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Peeked{}, errors.New("token: its claims are not base64")
	}
	var p payload
	if err := json.Unmarshal(text, &p); err != nil {
		return Peeked{}, errors.New("token: its claims are not those of a JWT")
	}
	out := Peeked{Subject: p.Subject, Issuer: p.Issuer}
	if p.Expiry != nil {
		if *p.Expiry < 0 || *p.Expiry > maxTime {
			return Peeked{}, fmt.Errorf("token: exp %d is not a time in seconds", *p.Expiry)
		}
		out.Expiry = p.Expiry.Time()
	}
	return out, nil
}
