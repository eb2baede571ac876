package verify

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/certs"
)

// Check returns the faults of the set, errors first. It reports a fault at its first
// place only.
func Check(s Set, o Options) []Finding {
	c := &checker{set: s, opts: o, links: &linker{known: map[[2]*x509.Certificate]bool{}}}
	c.read()
	c.links.limit(len(c.all) + len(c.crls) + len(o.Roots) + len(o.Clusters) + len(o.Lists))
	if len(s.Missing) > 0 {
		c.report(Incomplete, s.Place, cert{}, "missing: %s", strings.Join(s.Missing, ", "))
	}
	c.roles()
	c.chains()
	c.anchors()
	c.certificates()
	c.names()
	c.keys()
	c.revocation()
	if c.links.left == 0 {
		c.report(TooMany, s.Place, cert{}, "so many certificates share a name that not all signatures were checked")
	}
	c.last()
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity)) // error, warning
	})
	return c.findings
}

// checker holds what one Check knows.
type checker struct {
	set      Set
	opts     Options
	links    *linker
	findings []Finding

	all   []cert // each distinct certificate, at its first place
	first cert   // the subject of the set, if the set has a purpose
	lists []list // the certificates of each file
	// unread reports whether a certificate cannot be read. What belongs to it is not judged.
	unread bool
	// roots are the trusted certificates. rooted reports whether the set or the
	// options name them; otherwise they are the self-signed ones.
	roots  []cert
	rooted bool
	pks    []privateKey
	crls   []crl

	paths  [][]cert        // from a signer or leaf to a root
	needed map[string]bool // the certificates on the paths, by their bytes
	steps  int             // steps of the search for the current path
}

// list is the certificates of one file, in order.
type list struct {
	file  File
	certs []cert
	whole bool // all blocks are readable
}

type privateKey struct {
	public crypto.PublicKey
	place  string
	role   Role
}

// report adds a finding; subject may be the zero cert.
func (c *checker) report(code Code, place string, subject cert, format string, args ...any) {
	c.findings = append(c.findings, newFinding(code, place, subject.Certificate, fmt.Sprintf(format, args...)))
}

// newFinding returns a finding with the severity and the fix of its code. The subject
// may be nil.
func newFinding(code Code, place string, subject *x509.Certificate, reason string) Finding {
	k := kinds()[code]
	f := Finding{Severity: k.severity, Code: code, Place: place, Fix: k.fix, Reason: reason}
	if subject != nil {
		f.Subject, f.Fingerprint = Name(subject), Short(subject)
	}
	return f
}

// about reports a fault of a certificate at the place of the certificate.
func (c *checker) about(code Code, subject cert, format string, args ...any) {
	c.report(code, subject.place, subject, format, args...)
}

// judge is like about, but only warns if the set works without the certificate, such
// as an old root in a bundle.
func (c *checker) judge(code Code, subject cert, format string, args ...any) {
	c.about(code, subject, format, args...)
	if c.set.Purpose != Loose && len(c.paths) > 0 && !c.needed[string(subject.Raw)] {
		c.findings[len(c.findings)-1].Severity = Warning
	}
}

// Name returns a name of a certificate for people: its subject, else its first
// alternative name.
func Name(c *x509.Certificate) string {
	if s := c.Subject.String(); s != "" {
		return s
	}
	if uris := certs.URIs(c); len(uris) > 0 {
		return uris[0]
	}
	if len(c.DNSNames) > 0 {
		return c.DNSNames[0]
	}
	return "serial " + c.SerialNumber.Text(16)
}

// Short returns the first 8 bytes of a certificate's SHA-256 in hex.
func Short(c *x509.Certificate) string { return certs.Fingerprint(c)[:23] }

// Describe returns the Name and Short of a certificate.
func Describe(c *x509.Certificate) string { return fmt.Sprintf("%s (%s)", Name(c), Short(c)) }

// read collects the content of all files and reports faulty blocks.
func (c *checker) read() {
	known := map[string]bool{}
	for _, f := range c.set.Files {
		switch {
		case f.Unreadable != "" && f.Exposed != "" && f.Role == RoleKey: // unread because exposed
			c.exposed(f)
			continue
		case f.Unreadable != "":
			c.report(Unreadable, f.Place, cert{}, "%s", f.Unreadable)
			continue
		case len(f.Blocks) == 0 && !f.Empty:
			c.report(NoPEM, f.Place, cert{}, "it holds no PEM block")
		case f.Empty && f.Name == caCRL: // an empty list would end all revocations
			c.report(CRLMalformed, f.Place, cert{}, "the file is empty, so it holds no revocation list")
		}
		l := list{file: f, whole: true}
		inFile := map[string]bool{}
		if slices.ContainsFunc(f.Blocks, certs.Block.IsKey) {
			if f.Exposed != "" {
				c.exposed(f)
			}
			if f.Replaceable != "" {
				c.report(OpenDirectory, f.Place, cert{}, "others can replace the private key: %s", f.Replaceable)
			}
		}
		for i, b := range f.Blocks {
			place := f.At(i)
			switch {
			case b.Fault != "":
				c.fault(b, place)
				c.unread = c.unread || !b.IsKey() && (b.Fault == certs.FaultDamaged || b.Type == "CERTIFICATE")
				l.whole = l.whole && b.Fault == certs.FaultTrailing
			case b.Cert != nil:
				x := cert{b.Cert, place}
				if raw := string(b.Cert.Raw); inFile[raw] {
					c.about(Duplicate, x, "the certificate stands in this file twice")
				} else if inFile[raw] = true; !known[raw] {
					known[raw] = true
					c.all = append(c.all, x)
				}
				l.certs = append(l.certs, x)
			case b.CRL != nil:
				c.crls = append(c.crls, crl{RevocationList: b.CRL, place: place})
			case b.KeyOf != nil:
				c.pks = append(c.pks, privateKey{b.KeyOf, place, f.Role})
			}
			c.misplaced(f.Role, b, place)
		}
		if f.Name == caCert && f.Role == RoleCert && len(l.certs) > 1 {
			c.about(Misplaced, l.certs[1], "the file holds %d certificates, want one; the others belong in %s", len(l.certs), certChain)
		}
		c.lists = append(c.lists, l)
	}
}

func (c *checker) exposed(f File) {
	reason, _, _ := strings.Cut(f.Exposed, "; ") // the rest repeats the fix
	c.report(ExposedKey, f.Place, cert{}, "others can get at the private key: %s", reason)
}

// fault reports an unreadable block.
func (c *checker) fault(b certs.Block, place string) {
	code, reason := Malformed, fmt.Sprintf("%s: %v", strings.ToLower(b.Type), b.Err)
	switch b.Fault {
	case certs.FaultDamaged:
		code, reason = DamagedPEM, b.Err.Error()
	case certs.FaultUnknown:
		code, reason = UnknownBlock, b.Err.Error()
	case certs.FaultTrusted:
		code, reason = TrustedBlock, b.Err.Error()
	case certs.FaultEncrypted:
		code, reason = EncryptedKey, "nothing can use a private key under a passphrase"
	case certs.FaultTrailing:
		code, reason = TrailingText, b.Err.Error()
	case certs.FaultTooMany:
		code, reason = TooMany, b.Err.Error()
	case certs.FaultMalformed:
		// The parser refuses some weak keys that are well-formed.
		if b.Type == "X509 CRL" {
			code = CRLMalformed
		} else if strings.Contains(reason, "negative serial number") {
			reason = "its serial number is negative, so Go programs, such as every control plane of Istio, refuse it: have it made again"
		} else if strings.Contains(reason, "RSA public exponent") || strings.Contains(reason, "RSA modulus") || strings.Contains(reason, "unsupported elliptic curve") {
			code = WeakKey
		}
	}
	c.report(code, place, cert{}, "%s", reason)
}

// misplaced reports a block that does not belong in a file of this role.
func (c *checker) misplaced(role Role, b certs.Block, place string) {
	var want string
	switch {
	case b.Fault != "" && !b.IsKey():
	case role == RoleKey && !b.IsKey():
		want = "a private key"
	case role == RoleCRL && b.CRL == nil:
		want = "revocation lists"
	case (role == RoleCert || role == RoleChain || role == RoleRoots || role == RoleRoot) && b.Cert == nil:
		want = "certificates"
	}
	if want != "" {
		c.report(Misplaced, place, cert{}, "the file is for %s, but this is %s", want, strings.ToLower(b.Type))
	}
}

// roles finds the subject and the trusted roots of the set.
func (c *checker) roles() {
	var selfSigned []cert
	for _, x := range c.all {
		if c.links.selfSigned(x.Certificate) {
			selfSigned = append(selfSigned, x)
		}
	}
	for _, l := range c.lists {
		if len(l.certs) == 0 {
			continue
		}
		switch l.file.Role {
		case RoleCert:
			c.first = l.certs[0]
		case RoleRoot:
			c.first = l.certs[0]
			c.roots, c.rooted = append(c.roots, l.certs...), true
		case RoleRoots:
			c.roots, c.rooted = append(c.roots, l.certs...), true
		}
	}
	for _, r := range c.opts.Roots {
		c.roots, c.rooted = append(c.roots, cert{r, "the given roots"}), true
	}
	if !c.rooted {
		c.roots = selfSigned
	}
}

// isRoot reports whether the bundle has x or a root with the same name and key, such
// as a renewed root.
func (c *checker) isRoot(x *x509.Certificate) bool {
	return slices.ContainsFunc(c.roots, func(r cert) bool { return sameCA(r.Certificate, x) })
}

// sameCA reports whether two certificates have the same name and key.
func sameCA(a, b *x509.Certificate) bool {
	return bytes.Equal(a.RawSubject, b.RawSubject) && certs.SameKey(a.PublicKey, b.PublicKey)
}

// keys reports weak private keys, and private keys without their certificate.
func (c *checker) keys() {
	for _, k := range c.pks {
		if code, reason := weakKey(k.public); code != "" && c.first.Certificate == nil {
			c.report(code, k.place, cert{}, "the private key: %s", reason)
		}
		switch {
		case k.role == RoleKey && c.first.Certificate != nil:
			if !c.unread && !certs.SameKey(c.first.PublicKey, k.public) {
				c.report(KeyMismatch, k.place, c.first, "it is not the private key of %q", Name(c.first.Certificate))
			}
		case c.unread:
		case len(c.all) > 0 && !slices.ContainsFunc(c.all, func(x cert) bool { return certs.SameKey(x.PublicKey, k.public) }):
			c.report(KeyMismatch, k.place, cert{}, "it is the private key of none of the certificates in %s", c.set.Place)
		}
	}
}

// last verifies the set as the control plane and its peers do, so that no set passes
// that they refuse.
func (c *checker) last() {
	if len(c.roots) == 0 ||
		slices.ContainsFunc(c.findings, func(f Finding) bool { return f.Severity == Error }) {
		return
	}
	// Peers must accept the subject of the set or, in a loose set, the first certificate
	// of each path.
	var asked []cert
	switch {
	case c.set.Purpose == Loose:
		for _, p := range c.paths {
			if !holds(asked, p[0]) {
				asked = append(asked, p[0])
			}
		}
	case c.first.Certificate != nil:
		asked = []cert{c.first}
	}
	for _, x := range asked {
		if _, err := certs.Verify(x.Certificate, plain(c.all), plain(c.roots), c.opts.Now); err != nil {
			c.about(Rejected, x, "%v", err)
		}
	}
}

// plain returns certificates without their places.
func plain(list []cert) []*x509.Certificate {
	out := make([]*x509.Certificate, len(list))
	for i, x := range list {
		out[i] = x.Certificate
	}
	return out
}

// anchors reports trusted certificates that are no roots. Not all peers accept a path
// that ends there.
func (c *checker) anchors() {
	for _, l := range c.lists {
		if l.file.Role != RoleRoots && l.file.Role != RoleRoot {
			continue
		}
		for _, x := range l.certs {
			same := func(r cert) bool { // its root is here, too
				return sameCA(r.Certificate, x.Certificate) && c.links.selfSigned(r.Certificate)
			}
			if x.IsCA && !slices.ContainsFunc(c.roots, same) {
				c.about(NotSelfSigned, x, "it is trusted, but it is signed by %q and no root", x.Issuer)
			}
		}
	}
}
