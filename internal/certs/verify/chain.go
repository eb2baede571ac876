package verify

import (
	"crypto/x509"
	"slices"
	"time"
)

// Bounds of the search for a root: certificates of a path, paths, and steps.
const (
	maxPath  = 10
	maxPaths = 16
	maxSteps = 2000
)

// chains checks the order of each file and finds its path to a root.
func (c *checker) chains() {
	c.needed = map[string]bool{}
	for _, l := range c.lists {
		if start, ok := c.start(l); ok {
			// A root's file has further roots behind it.
			if l.whole && l.file.Role != RoleRoot {
				c.order(l)
			}
			c.lead(start)
		}
	}
	for _, p := range c.paths {
		for _, x := range p {
			c.needed[string(x.Raw)] = true
		}
		c.walk(p)
	}
}

// start returns the certificate of the list that needs a path to a root. It returns
// false if there is none, as in a bundle.
func (c *checker) start(l list) (cert, bool) {
	if len(l.certs) == 0 {
		return cert{}, false
	}
	switch l.file.Role {
	case RoleCert, RoleRoot:
		return l.certs[0], true
	case RoleChain:
		// RoleCert needs the path; here the chain must begin with that certificate.
		if c.first.Certificate != nil {
			if !l.whole {
				return cert{}, false
			}
			return cert{}, c.chainOfFirst(l)
		}
		return l.certs[0], true
	case RoleRoots, RoleKey, RoleCRL:
		return cert{}, false
	}
	first := l.certs[0]
	if c.set.Purpose != Loose {
		return cert{}, false // an unknown file beside a known layout
	}
	if c.links.selfSigned(first.Certificate) && !slices.ContainsFunc(l.certs, func(x cert) bool { return !x.IsCA }) {
		return cert{}, false // a bundle
	}
	return first, true
}

// chainOfFirst checks that a chain begins with the subject of the set.
func (c *checker) chainOfFirst(l list) bool {
	switch at := slices.IndexFunc(l.certs, func(x cert) bool { return x.Equal(c.first.Certificate) }); {
	case at == 0:
		return true
	case at > 0:
		c.about(WrongOrder, l.certs[0], "the chain starts with %q, and %q, which it is for, comes as number %d",
			Name(l.certs[0].Certificate), Name(c.first.Certificate), at+1)
	default:
		c.about(WrongOrder, l.certs[0], "the chain starts with %q and does not hold %q, which it is for",
			Name(l.certs[0].Certificate), Name(c.first.Certificate))
	}
	return false
}

// order reports the first misplaced certificate of a chain. It ignores missing
// certificates, which the search for a path reports.
func (c *checker) order(l list) {
	for i := range len(l.certs) - 1 {
		cur, next := l.certs[i], l.certs[i+1]
		ended := c.links.selfSigned(cur.Certificate)
		if cur.Equal(next.Certificate) || !ended && c.links.signed(next.Certificate, cur.Certificate) {
			continue
		}
		isNext := func(x cert) bool {
			return !x.Equal(cur.Certificate) && c.links.signed(x.Certificate, cur.Certificate)
		}
		isBefore := func(x cert) bool {
			return !x.Equal(cur.Certificate) && c.links.signed(cur.Certificate, x.Certificate)
		}
		switch {
		case !ended && slices.ContainsFunc(l.certs, isNext), ended && slices.ContainsFunc(l.certs[i+1:], isBefore):
			c.about(WrongOrder, next, "%q stands behind %q, which it did not sign", Name(next.Certificate), Name(cur.Certificate))
		case ended || c.leads(cur) || len(c.roots) == 0:
			c.unrelated(l.certs[i+1:])
		}
		return
	}
}

// unrelated reports certificates after the end of a chain. Further roots of the bundle
// are allowed, as during a rotation.
func (c *checker) unrelated(rest []cert) {
	for _, x := range rest {
		if !c.links.selfSigned(x.Certificate) || !c.isRoot(x.Certificate) {
			c.about(Unrelated, x, "%q signed nothing that stands before it", Name(x.Certificate))
		}
	}
}

func (c *checker) leads(x cert) bool {
	return slices.ContainsFunc(c.roots, func(r cert) bool { return c.links.signed(r.Certificate, x.Certificate) })
}

// lead finds the best path from a certificate to a root and keeps it.
func (c *checker) lead(start cert) {
	if start.Certificate == nil {
		return
	}
	for _, l := range c.lists {
		if l.file.Role != RoleRoots && l.file.Role != RoleRoot && c.strangeRoot(l, start) {
			return
		}
	}
	if len(c.roots) == 0 {
		return // no trusted roots are known
	}
	c.steps = 0
	paths := c.search(nil, []cert{start})
	if len(paths) == 0 {
		if c.unread { // it may be on the path
			return
		}
		c.about(NoPathToRoot, start, "%s", c.whyNoPath(start))
		return
	}
	c.paths = append(c.paths, slices.MinFunc(paths, func(a, b []cert) int { return c.badness(a) - c.badness(b) }))
}

// strangeRoot reports roots of a chain that are not in the bundle.
func (c *checker) strangeRoot(l list, start cert) bool {
	found := false
	if !c.rooted || c.unread || !slices.ContainsFunc(l.certs, func(x cert) bool { return x.Equal(start.Certificate) }) {
		return false
	}
	for _, x := range l.certs {
		if c.links.selfSigned(x.Certificate) && !c.isRoot(x.Certificate) {
			c.about(RootNotInBundle, x, "the chain leads to the root %q, which is not among those trusted", Name(x.Certificate))
			found = true
		}
	}
	return found
}

// search appends all paths to found that extend path to a root.
func (c *checker) search(found [][]cert, path []cert) [][]cert {
	last := path[len(path)-1]
	if c.isRoot(last.Certificate) {
		return append(found, slices.Clone(path))
	}
	if c.steps++; len(path) == maxPath || c.steps > maxSteps {
		return found
	}
	for _, from := range [][]cert{c.roots, c.all} {
		for _, x := range from {
			if len(found) == maxPaths {
				return found
			}
			if c.links.signed(x.Certificate, last.Certificate) &&
				!slices.ContainsFunc(path, func(w cert) bool { return w.Equal(x.Certificate) }) {
				found = c.search(found, append(slices.Clip(path), x))
			}
		}
	}
	return found
}

// badness ranks paths. Invalid and longer paths are worse.
func (c *checker) badness(path []cert) int {
	n := 0
	for i, x := range path {
		if c.opts.Now.Before(x.NotBefore) || c.opts.Now.After(x.NotAfter) {
			n += 100
		}
		if i > 0 && (!mayBeCA(x.Certificate) || tooShort(x.Certificate, i-leaves(path))) {
			n += 10
		}
	}
	return n + len(path)
}

// leaves returns 1 if the path starts at a leaf, which path lengths do not count.
func leaves(path []cert) int {
	if path[0].IsCA {
		return 0
	}
	return 1
}

// whyNoPath explains at which certificate the path ends.
func (c *checker) whyNoPath(x cert) string {
	seen := map[*x509.Certificate]bool{}
	for !seen[x.Certificate] {
		seen[x.Certificate] = true
		i := slices.IndexFunc(c.all, func(p cert) bool {
			return !p.Equal(x.Certificate) && c.links.signed(p.Certificate, x.Certificate)
		})
		if i < 0 {
			break
		}
		x = c.all[i]
	}
	for _, r := range slices.Concat(c.roots, c.all) {
		if string(r.RawSubject) == string(x.RawIssuer) && !r.Equal(x.Certificate) {
			return "it names the signer \"" + Name(r.Certificate) + "\", but the key of the one given did not sign \"" + Name(x.Certificate) + "\""
		}
	}
	return "nothing given has signed \"" + Name(x.Certificate) + "\"; its signer is called \"" + x.Issuer.String() + "\""
}

// walk checks each certificate of a path against its signer.
func (c *checker) walk(path []cert) {
	for i := range len(path) - 1 {
		child, parent := path[i], path[i+1]
		if !mayBeCA(parent.Certificate) {
			continue // certificates reports it
		}
		if below := i + 1 - leaves(path); tooShort(parent.Certificate, below) {
			c.about(PathLength, parent, "its path length %d permits no more than that many CAs below it, there are %d", parent.MaxPathLen, below)
		}
		if child.NotAfter.After(parent.NotAfter) {
			c.judge(OutlivesSigner, child, "it is valid until %s, but its signer %q only until %s",
				stamp(child.NotAfter), Name(parent.Certificate), stamp(parent.NotAfter))
		}
	}
}

// tooShort reports whether the path length of a CA forbids so many CAs below it.
func tooShort(ca *x509.Certificate, below int) bool {
	return ca.MaxPathLen >= 0 && ca.MaxPathLen < below
}

func mayBeCA(x *x509.Certificate) bool {
	return x.BasicConstraintsValid && x.IsCA && (x.KeyUsage == 0 || x.KeyUsage&x509.KeyUsageCertSign != 0)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
