// Package token makes and checks the tokens by which workloads prove who they
// are: JSON Web Tokens in the shape of Kubernetes service-account tokens. It
// keeps their issuers in directories, and follows changes of the public keys.
//
// It refuses more than the JWT standard does: only asymmetric algorithms, each
// bound to its kind of key, a key id that names exactly one key, and a subject
// of exactly four parts.
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
	// maxTokenSize is the longest token that is looked at, in bytes.
	MaxSize = 16 << 10
	// MaxTTL is the longest life of a token, made or accepted: that of a
	// Kubernetes token with the extended life time.
	MaxTTL = 365 * 24 * time.Hour
	// Leeway is how far the clocks of issuer and verifier may differ: exp, nbf
	// and iat are each checked with this much tolerance.
	Leeway = 10 * time.Second
)

// Claims is what a token says of its bearer. For Create everything up to TTL
// is input, of which the pod and the uids may be empty. Verify fills all of it.
type Claims struct {
	Namespace         string // DNS label
	ServiceAccount    string // DNS name
	ServiceAccountUID string // Create derives one from the name if empty
	Pod               string // DNS name; empty if the token is bound to no pod
	PodUID            string // as ServiceAccountUID
	Audiences         []string
	TTL               time.Duration // exp - iat, whole seconds

	Issuer   string
	ID       string // jti
	IssuedAt time.Time
}

// Expiry is when the token ends.
func (c Claims) Expiry() time.Time { return c.IssuedAt.Add(c.TTL) }

const subjectPrefix = "system:serviceaccount:"

// Subject is whom a token of the service account is of, as API servers name it.
func Subject(namespace, serviceAccount string) string {
	return subjectPrefix + namespace + ":" + serviceAccount
}

// ParseSubject reads system:serviceaccount:<namespace>:<service account>.
func ParseSubject(sub string) (namespace, serviceAccount string, err error) {
	rest, ok := strings.CutPrefix(sub, subjectPrefix)
	if !ok {
		return "", "", fmt.Errorf("sub %q: want %s<namespace>:<service account>", sub, subjectPrefix)
	}
	namespace, serviceAccount, ok = strings.Cut(rest, ":")
	if !ok {
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

// audience reads a string or a list and, like Kubernetes, writes a list.
type audience []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audience) UnmarshalJSON(b []byte) error {
	return (*jwt.Audience)(a).UnmarshalJSON(b)
}
