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
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var requestAuthenticationKind = closedKind(istioKind(kind{
	group: groupSecurity, name: "RequestAuthentication", plural: "requestauthentications", versions: []string{"v1", "v1beta1"},
	support: fields.Works, meaning: "see [request-authentication.md](request-authentication.md)", fields: requestAuthenticationFields,
}, func(c *conversion, spec *securityv1beta1.RequestAuthentication) *fields.Error {
	c.object = &snapshot.RequestAuthentication{Meta: c.meta, Kind: snapshot.KindRequestAuthentication, Spec: spec}
	for i, r := range spec.JwtRules {
		if keyset.HasPrivateKey([]byte(r.GetJwks())) {
			w := fields.Faultf(fields.At("spec.jwtRules", i)+".jwks", "has a private key: who may read the object can make valid tokens; replace the key, and give only its public part")
			w.Kind = fields.PrivateKey
			c.warn(w)
		}
		if r.GetTimeout() != nil && r.GetJwks() != "" {
			w := fields.WithoutEffect(fields.At("spec.jwtRules", i)+".timeout", "the keys are in jwks, so nothing is fetched")
			w.Kind = fields.Unneeded
			c.warn(w)
		}
	}
	return fields.AllFaults(
		attachmentFault(spec),
		c.referenceFault(spec),
		fields.Each("jwtRules", spec.JwtRules, tokenRuleFault),
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
func tokenRuleFault(field string, r *securityv1beta1.JWTRule) *fields.Error {
	faults := fields.AllFaults(
		fields.TextFault(field+".issuer", r.Issuer),
		textsFault(field+".audiences", r.Audiences),
		keysFault(field, r),
		textsFault(field+".fromParams", r.FromParams),
		textsFault(field+".spaceDelimitedClaims", r.SpaceDelimitedClaims),
		tokenPlacesFault(field, r),
		claimHeadersFault(field+".outputClaimToHeaders", r.OutputClaimToHeaders),
	)
	if r.Issuer == "" {
		faults = fields.Faultf(field+".issuer", "is missing").And(faults)
	}
	if r.OutputPayloadToHeader != "" && !isOutputHeader(r.OutputPayloadToHeader) {
		faults = faults.And(fields.Faultf(field+".outputPayloadToHeader", "%q is not the name of a header that can be set", r.OutputPayloadToHeader))
	}
	if d := r.GetTimeout(); d != nil && (d.AsDuration() <= 0 || d.AsDuration() > maxKeyTimeout) {
		faults = faults.And(fields.Faultf(field+".timeout", "%s: want more than 0 and at most %s", d.AsDuration(), maxKeyTimeout))
	}
	return faults
}

// keysFault checks the keys of a rule, and brings an inline key set into the form of
// keyset.Parse.
func keysFault(field string, r *securityv1beta1.JWTRule) *fields.Error {
	switch {
	case r.Jwks != "" && r.JwksUri != "":
		return fields.Faultf(field+".jwksUri", "cannot be used with jwks: use one of both")
	case r.Jwks == "":
		return keyURLFault(field, r)
	}
	keys, leftOut, err := keyset.Parse([]byte(r.Jwks), keyset.Inline)
	if err = cmp.Or(err, errors.Join(leftOut...)); err != nil {
		return fields.Faultf(field+".jwks", "%w", err)
	}
	r.Jwks = keys
	return nil
}

// keyURLFault checks the URL of a rule's key set, or the issuer from which it is discovered.
func keyURLFault(field string, r *securityv1beta1.JWTRule) *fields.Error {
	if r.JwksUri == "" {
		if r.Issuer != "" && !isKeyURL(r.Issuer) {
			return fields.Faultf(field+".issuer", "%q is not a URL from which its keys could be discovered: give jwksUri or jwks", r.Issuer)
		}
		return nil
	}
	if !isKeyURL(r.JwksUri) {
		return fields.Faultf(field+".jwksUri", "is not a URL of http or https, of at most %d bytes and without user", maxKeyURL)
	}
	return nil
}

func isKeyURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= maxKeyURL && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}

// tokenPlacesFault checks where the tokens of a rule are.
func tokenPlacesFault(field string, r *securityv1beta1.JWTRule) *fields.Error {
	if n := len(r.FromHeaders); n > maxTokenParts {
		return fields.Faultf(field+".fromHeaders", "has %d items: want at most %d", n, maxTokenParts)
	}
	if n := len(r.FromCookies); n > maxTokenParts {
		return fields.Faultf(field+".fromCookies", "has %d items: want at most %d", n, maxTokenParts)
	}
	return fields.AllFaults(
		fields.Each(field+".fromHeaders", r.FromHeaders, func(field string, h *securityv1beta1.JWTHeader) *fields.Error {
			prefix := fields.TextFault(field+".prefix", h.Prefix)
			if !fields.IsHeaderName(h.Name) {
				return fields.Faultf(field+".name", "%q is not the name of a header", h.Name).And(prefix)
			}
			return prefix
		}),
		fields.EachText(field+".fromCookies", r.FromCookies, func(field, name string) *fields.Error {
			if !fields.IsHeaderName(name) { // both are tokens of HTTP
				return fields.Faultf(field, "%q is not the name of a cookie", name)
			}
			return nil
		}),
	)
}

// claimHeadersFault checks the headers that get claims. Their names must differ.
func claimHeadersFault(field string, list []*securityv1beta1.ClaimToHeader) *fields.Error {
	if len(list) > maxTokenParts {
		return fields.Faultf(field, "has %d items: want at most %d", len(list), maxTokenParts)
	}
	var names []string
	return fields.Each(field, list, func(field string, h *securityv1beta1.ClaimToHeader) *fields.Error {
		var faults *fields.Error
		name := strings.ToLower(h.Header)
		switch {
		case !isOutputHeader(h.Header):
			faults = fields.Faultf(field+".header", "%q is not the name of a header that can be set", h.Header)
		case slices.Contains(names, name):
			faults = fields.Faultf(field+".header", "%q is given twice", h.Header)
		}
		names = append(names, name)
		if h.Claim == "" {
			return faults.And(fields.Faultf(field+".claim", "is missing"))
		}
		return faults.And(fields.TextFault(field+".claim", h.Claim))
	})
}

// isOutputHeader reports whether a claim may set a header.
func isOutputHeader(name string) bool {
	return fields.IsHeaderName(name) && !strings.EqualFold(name, "host")
}

// textsFault checks a list of texts that must not be empty.
func textsFault(field string, list []string) *fields.Error {
	if len(list) > maxTokenParts {
		return fields.Faultf(field, "has %d items: want at most %d", len(list), maxTokenParts)
	}
	return fields.EachText(field, list, func(field, text string) *fields.Error {
		if text == "" {
			return fields.Faultf(field, "is empty")
		}
		return fields.TextFault(field, text)
	})
}

const tokenTarget = "a Gateway of the Kubernetes Gateway API; other references are refused"

var requestAuthenticationFields = []fields.Field{
	{Path: "selector", Support: fields.Works},
	{Path: "targetRef", Support: fields.Partly, Meaning: tokenTarget, Lacks: otherTarget},
	{Path: "targetRef.namespace", Support: fields.Works, Meaning: ownNamespace},
	{Path: "targetRefs", Support: fields.Partly, Meaning: tokenTarget, Lacks: otherTarget},
	{Path: "targetRefs.namespace", Support: fields.Works, Meaning: ownNamespace},
	{Path: "jwtRules", Support: fields.Works, Meaning: "the control plane fetches `jwksUri`, with a `timeout` of at most 30s, and proxies never do; a `timeout` beside `jwks` is reported"},
}
