package verify

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// certificates checks each certificate by itself.
func (c *checker) certificates() {
	for _, x := range c.all {
		c.clock(x)
		c.strength(x)
		if len(x.UnhandledCriticalExtensions) > 0 {
			c.judge(CriticalExt, x, "peers refuse it for its critical extension %v, which they do not know", x.UnhandledCriticalExtensions[0])
		}
		ca := c.mustSign(x)
		if ca {
			c.signer(x)
		} else if !x.IsCA || isWorkload(x.Certificate) || c.set.Purpose == Leaf && c.isFirst(x) {
			c.leaf(x)
		}
		c.identity(x, ca || x.IsCA)
	}
}

func (c *checker) isFirst(x cert) bool {
	return c.first.Certificate != nil && x.Equal(c.first.Certificate)
}

// maxSoon is the time before its end from which a long-lived certificate is due.
const maxSoon = 30 * 24 * time.Hour

func (c *checker) clock(x cert) {
	now, life := c.opts.Now, x.NotAfter.Sub(x.NotBefore)
	switch left := x.NotAfter.Sub(now); {
	case now.After(x.NotAfter):
		c.judge(Expired, x, "it expired at %s", stamp(x.NotAfter))
	case now.Before(x.NotBefore):
		c.judge(NotYetValid, x, "it is valid only from %s", stamp(x.NotBefore))
	case left < min(maxSoon, life/5):
		c.judge(ExpiresSoon, x, "it expires at %s, in %s", stamp(x.NotAfter), days(left))
	}
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Truncate(time.Minute).String()
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

func (c *checker) strength(x cert) {
	if code, reason := weakKey(x.PublicKey); code != "" {
		c.judge(code, x, "its key is %s", reason)
	}
	unknown := unknownSignature(x.Certificate)
	if unknown != "" || weakSignature(x.SignatureAlgorithm) {
		if unknown == "" {
			unknown = x.SignatureAlgorithm.String()
		}
		c.judge(WeakSignature, x, "it is signed with %s", unknown)
		if c.links.selfSigned(x.Certificate) {
			// Peers do not check the signature of a root.
			c.findings[len(c.findings)-1].Severity = Warning
		}
	}
}

// mustSign reports whether the certificate must be a CA: it is the CA of a mesh, in a
// trust bundle, or the signer of another certificate of the set.
func (c *checker) mustSign(x cert) bool {
	if c.set.Purpose == CA && c.isFirst(x) {
		return true
	}
	for _, l := range c.lists {
		if (l.file.Role == RoleRoots || l.file.Role == RoleRoot) && holds(l.certs, x) {
			return true
		}
	}
	return slices.ContainsFunc(c.paths, func(p []cert) bool { return holds(p[1:], x) })
}

func holds(certs []cert, x cert) bool {
	return slices.ContainsFunc(certs, func(y cert) bool { return y.Equal(x.Certificate) })
}

// signer checks the constraints and usages of a CA.
func (c *checker) signer(x cert) {
	switch {
	case !x.BasicConstraintsValid || !x.IsCA:
		c.about(NotACA, x, "it has no right to sign (basic constraints)")
		return
	case !mayBeCA(x.Certificate):
		c.about(KeyUsage, x, "its key usage is without keyCertSign")
	case c.set.Purpose == CA && c.isFirst(x) && x.MaxPathLen < 0 && !c.links.selfSigned(x.Certificate):
		c.about(NoPathLength, x, "it has no path length, so what it signs may be a CA too")
	}
	if lacks := lacking(x.Certificate, c.uses(x)); lacks != "" {
		c.judge(ExtKeyUsage, x, "its extended key usages are without %s, so what it signs cannot have it", lacks)
	}
}

// uses returns the extended key usages that certificates below a CA need. In a mesh,
// each is both server and client.
func (c *checker) uses(x cert) []x509.ExtKeyUsage {
	if c.set.Purpose == CA {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	for _, p := range c.paths {
		if holds(p[1:], x) {
			return leafUses(p[0].Certificate)
		}
	}
	return nil
}

func leafUses(x *x509.Certificate) []x509.ExtKeyUsage {
	switch {
	case x.IsCA:
		return nil
	case len(spiffeIDs(x)) > 0:
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	case slices.Contains(x.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return nil // a client only
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
}

// lacking returns the first use that the certificate excludes.
func lacking(x *x509.Certificate, uses []x509.ExtKeyUsage) string {
	if len(x.ExtKeyUsage)+len(x.UnknownExtKeyUsage) == 0 || slices.Contains(x.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return ""
	}
	for _, use := range uses {
		if !slices.Contains(x.ExtKeyUsage, use) {
			return use.String()
		}
	}
	return ""
}

// leaf checks the constraints, usages and names of a leaf.
func (c *checker) leaf(x cert) {
	switch {
	case x.IsCA:
		c.judge(LeafIsCA, x, "a certificate that peers are shown must not be a CA (basic constraints)")
	case x.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		c.judge(LeafIsCA, x, "a certificate that peers are shown must not sign others (key usage keyCertSign or cRLSign)")
	case x.KeyUsage != 0 && x.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		c.judge(KeyUsage, x, "its key usage is without digitalSignature")
	}
	if lacks := lacking(x.Certificate, leafUses(x.Certificate)); lacks != "" {
		c.judge(ExtKeyUsage, x, "its extended key usages are without %s", lacks)
	}
	clientOnly := len(x.ExtKeyUsage) == 1 && x.ExtKeyUsage[0] == x509.ExtKeyUsageClientAuth // such as a kubeconfig's
	if !clientOnly && len(certs.URIs(x.Certificate))+len(x.DNSNames)+len(x.IPAddresses)+len(x.EmailAddresses) == 0 {
		c.judge(NoSAN, x, "it has no name that peers look at (subject alternative name)")
	}
}

// identity checks SPIFFE ids.
func (c *checker) identity(x cert, ca bool) {
	uris := certs.URIs(x.Certificate)
	if len(uris) > 1 {
		c.judge(ManyURIs, x, "it has %d URIs, peers accept exactly one", len(uris))
		return
	}
	for _, uri := range uris {
		if ca && !strings.HasPrefix(strings.ToLower(uri), "spiffe:") {
			continue
		}
		domain, err := parseID(uri, ca && !isWorkload(x.Certificate))
		switch {
		case err != nil:
			c.judge(BadSPIFFEID, x, "%v", err)
		case c.opts.TrustDomain != "" && domain != c.opts.TrustDomain && !slices.Contains(c.opts.Aliases, domain):
			c.judge(TrustDomain, x, "its trust domain is %q, not %q", domain, c.opts.TrustDomain)
		}
	}
}

// spiffeIDs returns the URIs of the scheme spiffe.
func spiffeIDs(x *x509.Certificate) []string {
	return slices.DeleteFunc(certs.URIs(x), func(s string) bool { return !strings.HasPrefix(s, "spiffe://") })
}

// isWorkload reports whether the certificate has a SPIFFE id with a path. The id of a
// CA has none.
func isWorkload(x *x509.Certificate) bool {
	return slices.ContainsFunc(spiffeIDs(x), func(s string) bool {
		_, path, _ := strings.Cut(strings.TrimPrefix(s, "spiffe://"), "/")
		return path != ""
	})
}

// parseID checks a SPIFFE id and returns its trust domain. Only the id of a CA may
// lack a path.
func parseID(id string, ca bool) (domain string, err error) {
	domain, path, err := certs.ParseSPIFFEID(id)
	switch {
	case err != nil:
		return "", err
	case !mesh.IsTrustDomain(domain):
		return "", fmt.Errorf("SPIFFE id %q has too long a trust domain", id)
	case path == "" && !ca:
		return "", fmt.Errorf("SPIFFE id %q names no workload", id)
	}
	return domain, nil
}

// names checks the name constraints of the CAs on each path.
func (c *checker) names() {
	seen := map[string]bool{}
	for _, x := range slices.Concat(c.paths...) {
		if c.opts.TrustDomain != "" && c.set.Purpose == CA && !seen[string(x.Raw)] && !permitsHost(x, c.opts.TrustDomain) {
			c.about(NameConstraint, x, "its name constraints do not permit the trust domain %q", c.opts.TrustDomain)
		}
		seen[string(x.Raw)] = true
	}
	for _, p := range c.paths {
		if slices.ContainsFunc(p, func(x cert) bool { code, _ := weakKey(x.PublicKey); return code != "" }) {
			continue // signatures of large keys are expensive
		}
		// At that time the whole path is valid, if it ever is.
		last := slices.MaxFunc(p, func(a, b cert) int { return a.NotBefore.Compare(b.NotBefore) })
		_, err := certs.Verify(p[0].Certificate, plain(p), plain(p[len(p)-1:]), last.NotBefore)
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.CANotAuthorizedForThisName {
			c.about(NameConstraint, p[0], "the name constraints of its chain do not permit a name: %s", invalid.Detail)
		}
	}
}

// permitsHost reports whether the URI constraints of a CA permit a host. A constraint is
// one host or, with a leading dot, all hosts below a domain.
func permitsHost(ca cert, host string) bool {
	matches := func(constraint string) bool {
		constraint = strings.ToLower(constraint)
		return constraint == "" || constraint == host || constraint[0] == '.' && strings.HasSuffix(host, constraint)
	}
	return !slices.ContainsFunc(ca.ExcludedURIDomains, matches) &&
		(len(ca.PermittedURIDomains) == 0 || slices.ContainsFunc(ca.PermittedURIDomains, matches))
}
