package ca

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// Certificate is a certificate of a Status.
type Certificate struct {
	Subject string    `json:"subject"`
	SHA256  string    `json:"sha256"`
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"`
}

// Describe describes a certificate.
func Describe(c *x509.Certificate) Certificate {
	return Certificate{verify.Name(c), certs.Fingerprint(c), c.NotBefore.UTC(), c.NotAfter.UTC()}
}

// Material describes a set in a Status.
type Material struct {
	Signer Certificate   `json:"signer"`
	Chain  []Certificate `json:"chain"`
	Roots  []Certificate `json:"roots"`
	// RevocationLists and Revoked count the lists and the certificates in them.
	RevocationLists int `json:"revocationLists"`
	Revoked         int `json:"revoked"`
	// ListsForPeers is the number of lists that proxies get, ListsUntil the time at
	// which the first of them expires.
	ListsForPeers int       `json:"listsForPeers"`
	ListsUntil    time.Time `json:"listsUntil,omitzero"`
}

func describe(s *Set) *Material {
	if s == nil {
		return nil
	}
	return &Material{
		Signer: Describe(s.Cert), Chain: describeAll(s.Chain), Roots: describeAll(s.Roots),
		RevocationLists: len(s.Revocations.Lists), Revoked: s.revoked.count(),
		ListsForPeers: s.ForPeers.Count, ListsUntil: s.ForPeers.Until.UTC(),
	}
}

// describeSeen describes the readable certificates of an invalid source, nil if there
// are none. The signer may be missing.
func describeSeen(read *store.Material) *Material {
	signer, chain, roots := read.Certificates()
	if signer == nil && len(chain)+len(roots) == 0 {
		return nil
	}
	m := &Material{Chain: describeAll(chain), Roots: describeAll(roots)}
	if signer != nil {
		m.Signer = Describe(signer)
	}
	return m
}

func describeAll(list []*x509.Certificate) (out []Certificate) {
	for _, c := range list {
		out = append(out, Describe(c))
	}
	return out
}

// Signed describes the workload certificates of a signer since the start.
type Signed struct {
	Signer Certificate   `json:"signer"`
	Roots  []Certificate `json:"roots"`  // returned with the last certificate
	LastAt time.Time     `json:"lastAt"` // time of the last certificate
	// ValidUntil is the time at which the last of its certificates expires.
	ValidUntil time.Time `json:"validUntil"`
}

// Page is the status page of the signing CA.
type Page struct {
	Status
	// Served has each signer since the start, in the order of their last
	// certificates.
	Served []Signed `json:"served"`
	// Serving is the certificate of the secure port.
	Serving *Certificate `json:"serving,omitzero"`
	// ServingSigner signed Serving.
	ServingSigner *Certificate `json:"servingSigner,omitzero"`
	// Differences between the sets on disk, loaded and served, and their reasons.
	Differences []string `json:"differences"`
}

// NewPage returns the page for a status and the signers of workload certificates.
func NewPage(s Status, signers []Issued, now time.Time) Page {
	var served []Signed
	for _, by := range signers {
		served = append(served, Signed{Describe(by.Authority.Cert), describeAll(by.Authority.Roots), by.Last.UTC(), by.Until.UTC()})
	}
	p := Page{Status: s, Served: served, Differences: []string{}}
	differ := func(format string, args ...any) { p.Differences = append(p.Differences, fmt.Sprintf(format, args...)) }
	if s.Error != "" {
		differ("on disk is not loaded, since %s: %s", s.Since.Format(time.RFC3339), s.Error)
	}
	if s.Alarm != "" {
		differ("revocation lists, since %s: %s", s.Since.Format(time.RFC3339), s.Alarm)
	}
	if s.Loaded == nil {
		return p
	}
	switch n := len(served); {
	case n == 0:
		differ("nothing was signed since the start")
	case served[n-1].Signer.SHA256 != s.Loaded.Signer.SHA256:
		differ("the signer changed at %s, and no workload has asked for a certificate since", s.LoadedAt.Format(time.RFC3339))
	case !slices.Equal(served[n-1].Roots, s.Loaded.Roots):
		differ("the roots changed at %s, and no workload has asked for a certificate since", s.LoadedAt.Format(time.RFC3339))
	}
	for _, old := range served {
		if old.Signer.SHA256 != s.Loaded.Signer.SHA256 && old.ValidUntil.After(now) {
			differ("certificates of the earlier signer %s are valid until %s", short(old.Signer), old.ValidUntil.Format(time.RFC3339))
		}
	}
	return p
}

// short returns the beginning of a certificate's SHA-256.
func short(c Certificate) string { return c.SHA256[:min(len(c.SHA256), 23)] }

// Status compares the source with the set in use.
type Status struct {
	Source string `json:"source"` // a directory or Secrets
	// Disk is the set in the source, nil if there is nothing to read. If Error is
	// not empty, it is the readable part.
	Disk   *Material `json:"disk"`
	Loaded *Material `json:"loaded"` // nil while there is none
	// LoadedAt is the time at which Loaded came into use, ReadAt the time of the
	// last read of the source.
	LoadedAt time.Time `json:"loadedAt,omitzero"`
	ReadAt   time.Time `json:"readAt"`
	// Error is the reason why Disk is not Loaded, Alarm the problem of its
	// revocation lists, Since the start of either.
	Error string    `json:"error,omitzero"`
	Alarm string    `json:"alarm,omitzero"`
	Since time.Time `json:"since,omitzero"`
	// Codes are the codes of the findings in Error and Alarm.
	Codes []verify.Code `json:"codes,omitzero"`
	// Warnings are problems of the set in use that do no harm so far.
	Warnings []verify.Finding `json:"warnings,omitzero"`
}

// Status returns the current status.
func (c *CA) Status() Status {
	l, set := c.last.Load(), c.set.Load()
	s := Status{
		Source: c.cfg.Source.Place(), Disk: describe(l.set), Loaded: describe(set), ReadAt: l.at.UTC(),
		Error: text(l.err), Alarm: text(l.alarm), Codes: findingCodes(l.err, l.alarm), Warnings: l.warnings,
	}
	if s.Disk == nil {
		s.Disk = l.seen
	}
	if set != nil {
		s.LoadedAt = set.LoadedAt.UTC()
	}
	if l.err != nil || l.alarm != nil {
		s.Since = l.since.UTC()
	}
	return s
}

func findingCodes(errs ...error) []verify.Code {
	var out []verify.Code
	for _, err := range errs {
		failure, ok := errors.AsType[*verify.Failure](err)
		if !ok {
			continue
		}
		for _, f := range failure.Findings {
			if !slices.Contains(out, f.Code) {
				out = append(out, f.Code)
			}
		}
	}
	return out
}

// Warnings returns the problems that do no harm so far, a line each.
func (c *CA) Warnings() []string {
	var lines []string
	for _, f := range c.last.Load().warnings {
		lines = append(lines, Line(f))
	}
	return lines
}

// Line returns a finding in one line.
func Line(f verify.Finding) string {
	return "warning: " + (&verify.Failure{Findings: []verify.Finding{f}}).Error()
}

// Problems returns the current problems, a line each.
func (c *CA) Problems() []string {
	l, set, now := c.last.Load(), c.set.Load(), c.cfg.Now()
	since := l.since.UTC().Format(time.RFC3339)
	var lines []string
	switch {
	case l.err != nil && set == nil:
		lines = append(lines, fmt.Sprintf("signing CA: none in %s since %s: %v", c.cfg.Source.Place(), since, l.err))
	case l.unfit != nil:
		lines = append(lines, fmt.Sprintf("signing CA: the CA in %s does not fit the mesh since %s, nothing is signed: %v", c.cfg.Source.Place(), since, l.err))
	case l.err != nil:
		lines = append(lines, fmt.Sprintf("signing CA: the CA in %s is refused since %s, the one loaded at %s keeps signing: %v",
			c.cfg.Source.Place(), since, set.LoadedAt.UTC().Format(time.RFC3339), l.err))
	}
	if l.alarm != nil {
		lines = append(lines, fmt.Sprintf("signing CA: revocation lists, since %s: %v", since, l.alarm))
	}
	if set != nil && now.After(set.Cert.NotAfter) {
		lines = append(lines, fmt.Sprintf("signing CA: %q expired at %s: nothing is signed", verify.Name(set.Cert), set.Cert.NotAfter.UTC().Format(time.RFC3339)))
	}
	return lines
}
