package snapshot

import (
	"cmp"
	"slices"
	"strings"
	"time"

	securityv1beta1 "istio.io/api/security/v1beta1"
)

// KindRequestAuthentication is the kind of RequestAuthentication.
const KindRequestAuthentication Kind = "RequestAuthentication"

// RequestAuthentication checks the tokens (JWT) of requests to workloads. Inline key sets
// are results of keyset.Parse.
type RequestAuthentication = Config[*securityv1beta1.RequestAuthentication]

// KeySource is the place from which the control plane fetches a key set: a URL or, without
// one, the OpenID Connect discovery of an issuer.
type KeySource struct{ URL, Issuer string }

// Compare orders sources.
func (s KeySource) Compare(other KeySource) int {
	return cmp.Or(cmp.Compare(s.URL, other.URL), cmp.Compare(s.Issuer, other.Issuer))
}

func (s KeySource) String() string { return cmp.Or(s.URL, "discovery of "+s.Issuer) }

// KeySourceOf returns the source of a rule's key set. ok is false if the rule contains it.
func KeySourceOf(r *securityv1beta1.JWTRule) (s KeySource, ok bool) {
	switch {
	case r.GetJwks() != "":
		return KeySource{}, false
	case r.GetJwksUri() != "":
		return KeySource{URL: r.GetJwksUri()}, true
	}
	return KeySource{Issuer: r.GetIssuer()}, true
}

// KeptKeys names the keys that a rule had before its KeySource changed. They count until the new
// ones are fetched.
type KeptKeys struct {
	Policy, Issuer string
	Source         KeySource // the new one
}

// WantedKeys is a key set that the policies of a namespace need. Timeout bounds one fetch.
type WantedKeys struct {
	KeySource
	Namespace string
	Timeout   time.Duration
}

// claimHeader starts the names by which conditions on headers refer to claims of tokens.
const claimHeader = "@request.auth.claims"

// ClaimPath returns the path of the claim to which the name of a header refers, such as
// @request.auth.claims.a.b or @request.auth.claims[a][b]. isClaim is false for another
// header, and path is nil if the name is not in one of these forms.
func ClaimPath(header string) (path []string, isClaim bool) {
	if len(header) < len(claimHeader) || !strings.EqualFold(header[:len(claimHeader)], claimHeader) {
		return nil, false
	}
	rest := header[len(claimHeader):]
	if inner, ok := strings.CutPrefix(rest, "."); ok {
		path = strings.Split(inner, ".")
	} else if inner, ok := strings.CutPrefix(rest, "["); ok && strings.HasSuffix(inner, "]") {
		path = strings.Split(strings.TrimSuffix(inner, "]"), "][")
	}
	if slices.Contains(path, "") {
		return nil, true
	}
	return path, true
}
