package source

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var requestAuthenticationKind = closedKind(istioKind(kind{
	group: groupSecurity, name: "RequestAuthentication", plural: "requestauthentications", versions: []string{"v1", "v1beta1"},
	support: Works, meaning: "see [request-authentication.md](request-authentication.md)", fields: requestAuthenticationFields,
}, func(c *conversion, spec *securityv1beta1.RequestAuthentication) *FieldError {
	c.object = &snapshot.RequestAuthentication{Meta: c.meta, Kind: snapshot.KindRequestAuthentication, Spec: spec}
	for i, r := range spec.JwtRules {
		if keyset.HasPrivateKey([]byte(r.GetJwks())) {
			w := faultf(at("spec.jwtRules", i)+".jwks", "has a private key: who may read the object can make valid tokens; replace the key, and give only its public part")
			w.Kind = PrivateKey
			c.warn(w)
		}
		if r.GetTimeout() != nil && r.GetJwks() != "" {
			w := noEffect(at("spec.jwtRules", i)+".timeout", "the keys are in jwks, so nothing is fetched")
			w.Kind = Unneeded
			c.warn(w)
		}
	}
	return allFaults(
		attachmentFault(spec),
		c.referenceFault(spec),
		each("jwtRules", spec.JwtRules, tokenRuleFault),
	)
}), closedTokens)

// Limits of a rule.
const (
	maxTokenParts = 100 // audiences, places of tokens, and claims
	maxKeyURL     = 2048
	maxKeyTimeout = 30 * time.Second
)

// tokenRuleFault checks a rule, and brings its inline key set into the form of
// keyset.Parse.
func tokenRuleFault(field string, r *securityv1beta1.JWTRule) *FieldError {
	faults := allFaults(
		textFault(field+".issuer", r.Issuer),
		textsFault(field+".audiences", r.Audiences),
		keysFault(field, r),
		textsFault(field+".fromParams", r.FromParams),
		textsFault(field+".spaceDelimitedClaims", r.SpaceDelimitedClaims),
		tokenPlacesFault(field, r),
		claimHeadersFault(field+".outputClaimToHeaders", r.OutputClaimToHeaders),
	)
	if r.Issuer == "" {
		faults = faultf(field+".issuer", "is missing").and(faults)
	}
	if r.OutputPayloadToHeader != "" && !isOutputHeader(r.OutputPayloadToHeader) {
		faults = faults.and(faultf(field+".outputPayloadToHeader", "%q is not the name of a header that can be set", r.OutputPayloadToHeader))
	}
	if d := r.GetTimeout(); d != nil && (d.AsDuration() <= 0 || d.AsDuration() > maxKeyTimeout) {
		faults = faults.and(faultf(field+".timeout", "%s: want more than 0 and at most %s", d.AsDuration(), maxKeyTimeout))
	}
	return faults
}

// keysFault checks the keys of a rule, and brings an inline key set into the form of
// keyset.Parse.
func keysFault(field string, r *securityv1beta1.JWTRule) *FieldError {
	switch {
	case r.Jwks != "" && r.JwksUri != "":
		return faultf(field+".jwksUri", "cannot be used with jwks: use one of both")
	case r.Jwks == "":
		return keyURLFault(field, r)
	}
	keys, leftOut, err := keyset.Parse([]byte(r.Jwks), keyset.Inline)
	if err = cmp.Or(err, errors.Join(leftOut...)); err != nil {
		return faultf(field+".jwks", "%w", err)
	}
	r.Jwks = keys
	return nil
}

// keyURLFault checks the URL of a rule's key set, or the issuer from which it is discovered.
func keyURLFault(field string, r *securityv1beta1.JWTRule) *FieldError {
	if r.JwksUri == "" {
		if r.Issuer != "" && !isKeyURL(r.Issuer) {
			return faultf(field+".issuer", "%q is not a URL from which its keys could be discovered: give jwksUri or jwks", r.Issuer)
		}
		return nil
	}
	if !isKeyURL(r.JwksUri) {
		return faultf(field+".jwksUri", "is not a URL of http or https, of at most %d bytes and without user", maxKeyURL)
	}
	return nil
}

func isKeyURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= maxKeyURL && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}

// tokenPlacesFault checks where the tokens of a rule are.
func tokenPlacesFault(field string, r *securityv1beta1.JWTRule) *FieldError {
	if n := len(r.FromHeaders); n > maxTokenParts {
		return faultf(field+".fromHeaders", "has %d items: want at most %d", n, maxTokenParts)
	}
	if n := len(r.FromCookies); n > maxTokenParts {
		return faultf(field+".fromCookies", "has %d items: want at most %d", n, maxTokenParts)
	}
	return allFaults(
		each(field+".fromHeaders", r.FromHeaders, func(field string, h *securityv1beta1.JWTHeader) *FieldError {
			prefix := textFault(field+".prefix", h.Prefix)
			if !isHeaderName(h.Name) {
				return faultf(field+".name", "%q is not the name of a header", h.Name).and(prefix)
			}
			return prefix
		}),
		eachText(field+".fromCookies", r.FromCookies, func(field, name string) *FieldError {
			if !isHeaderName(name) { // both are tokens of HTTP
				return faultf(field, "%q is not the name of a cookie", name)
			}
			return nil
		}),
	)
}

// claimHeadersFault checks the headers that get claims. Their names must differ.
func claimHeadersFault(field string, list []*securityv1beta1.ClaimToHeader) *FieldError {
	if len(list) > maxTokenParts {
		return faultf(field, "has %d items: want at most %d", len(list), maxTokenParts)
	}
	var names []string
	return each(field, list, func(field string, h *securityv1beta1.ClaimToHeader) *FieldError {
		var faults *FieldError
		name := strings.ToLower(h.Header)
		switch {
		case !isOutputHeader(h.Header):
			faults = faultf(field+".header", "%q is not the name of a header that can be set", h.Header)
		case slices.Contains(names, name):
			faults = faultf(field+".header", "%q is given twice", h.Header)
		}
		names = append(names, name)
		if h.Claim == "" {
			return faults.and(faultf(field+".claim", "is missing"))
		}
		return faults.and(textFault(field+".claim", h.Claim))
	})
}

// isOutputHeader reports whether a claim may set a header.
func isOutputHeader(name string) bool { return isHeaderName(name) && !strings.EqualFold(name, "host") }

// textsFault checks a list of texts that must not be empty.
func textsFault(field string, list []string) *FieldError {
	if len(list) > maxTokenParts {
		return faultf(field, "has %d items: want at most %d", len(list), maxTokenParts)
	}
	return eachText(field, list, func(field, text string) *FieldError {
		if text == "" {
			return faultf(field, "is empty")
		}
		return textFault(field, text)
	})
}

const tokenTarget = "a Gateway of the Kubernetes Gateway API; other references are refused"

var requestAuthenticationFields = []apiField{
	{Path: "selector", Support: Works},
	{Path: "targetRef", Support: Partly, Meaning: tokenTarget, lacks: otherTarget},
	{Path: "targetRef.namespace", Support: Works, Meaning: ownNamespace},
	{Path: "targetRefs", Support: Partly, Meaning: tokenTarget, lacks: otherTarget},
	{Path: "targetRefs.namespace", Support: Works, Meaning: ownNamespace},
	{Path: "jwtRules", Support: Works, Meaning: "the control plane fetches `jwksUri`, with a `timeout` of at most 30s, and proxies never do; a `timeout` beside `jwks` is reported"},
}
