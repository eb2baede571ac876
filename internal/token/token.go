// Package token makes and checks the tokens that authenticate workloads: JSON Web
// Tokens in the format of Kubernetes service-account tokens. It also keeps token
// issuers in directories.
//
// It is stricter than the JWT standard: it accepts only asymmetric algorithms, one for
// each type of key, a key id that names exactly one key, and a subject of exactly four
// parts.
package token

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Limits of tokens.
const (
	// MaxSize is the size limit of tokens in bytes. Tokens of Kubernetes have about 1 KiB.
	MaxSize = 16 << 10
	// MaxTTL is the longest life of a token. Kubernetes tokens with an extended life
	// time have it.
	MaxTTL = 365 * 24 * time.Hour
	// Leeway is the tolerance for exp, nbf and iat, as clocks differ.
	Leeway = 10 * time.Second
)

// Claims are the claims of a token. Create uses the fields up to TTL; the pod and the
// uids may be empty. Verify sets all fields.
type Claims struct {
	Namespace         string // DNS label
	ServiceAccount    string // DNS name
	ServiceAccountUID string // if empty, Create derives it from the name
	Pod               string // DNS name; empty if the token is bound to no pod
	PodUID            string // if empty, Create derives it from the name
	Audiences         []string
	TTL               time.Duration // exp - iat, whole seconds

	Issuer   string
	ID       string // jti
	IssuedAt time.Time
}

// Expiry returns the end of the token.
func (c Claims) Expiry() time.Time { return c.IssuedAt.Add(c.TTL) }

const subjectPrefix = "system:serviceaccount:"

// Subject returns the sub claim of a service account's tokens.
func Subject(namespace, serviceAccount string) string {
	return subjectPrefix + namespace + ":" + serviceAccount
}

// ParseSubject parses system:serviceaccount:<namespace>:<service account>.
func ParseSubject(sub string) (namespace, serviceAccount string, err error) {
	rest, ok := strings.CutPrefix(sub, subjectPrefix)
	namespace, serviceAccount, found := strings.Cut(rest, ":")
	if !ok || !found {
		return "", "", fmt.Errorf("sub %q: want %s<namespace>:<service account>", sub, subjectPrefix)
	}
	if err := checkNames(namespace, serviceAccount); err != nil {
		return "", "", fmt.Errorf("sub %q: %w", sub, err)
	}
	return namespace, serviceAccount, nil
}

func checkNames(namespace, serviceAccount string) error {
	if !mesh.IsDNSLabel(namespace) {
		return fmt.Errorf("namespace %q is not a DNS label", namespace)
	}
	if !mesh.IsDNSName(serviceAccount) {
		return fmt.Errorf("service account %q is not a DNS name", serviceAccount)
	}
	return nil
}

// payload is the JSON of a token's claims.
type payload struct {
	Audience   audience         `json:"aud"`
	Expiry     *jwt.NumericDate `json:"exp"`
	IssuedAt   *jwt.NumericDate `json:"iat"`
	Issuer     string           `json:"iss"`
	ID         string           `json:"jti"`
	Kubernetes *kubernetes      `json:"kubernetes.io,omitempty"`
	NotBefore  *jwt.NumericDate `json:"nbf,omitempty"`
	Subject    string           `json:"sub"`
}

// kubernetes is the private claim of service-account tokens.
type kubernetes struct {
	Namespace      string     `json:"namespace"`
	Pod            *objectRef `json:"pod,omitempty"`
	ServiceAccount objectRef  `json:"serviceaccount"`
}

type objectRef struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// audience parses a string or a list and, like Kubernetes, writes a list.
type audience []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audience) UnmarshalJSON(b []byte) error {
	return (*jwt.Audience)(a).UnmarshalJSON(b)
}
