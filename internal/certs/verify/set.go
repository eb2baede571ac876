// Package verify finds what is wrong with certificates, keys, chains, trust
// bundles and revocation lists, and says for each fault its code, its place,
// the reason and the fix. It is pure: files and the clock are handed in. The
// command certs verify and the control plane judge by it alike.
package verify

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// Role is what a file is for.
type Role string

// The roles. A file without one is judged by what it holds.
const (
	RoleCert  Role = "certificate" // the one that signs or is shown; its chain may follow
	RoleKey   Role = "key"         // of RoleCert
	RoleChain Role = "chain"       // RoleCert, then each certificate that signed the one before
	RoleRoots Role = "roots"       // what peers trust
	RoleCRL   Role = "crl"         // revocation lists
	// RoleRoot is a root that is its own trust bundle.
	RoleRoot Role = "root"
)

// File is one text with PEM in it: a file, a key of a Secret, or a chain that
// a host showed.
type File struct {
	Name   string // the base name, or the key of a Secret
	Place  string // how a person finds it
	Role   Role
	Blocks []certs.Block
	Empty  bool // nothing but space
	// Exposed is why others can read it, empty when they cannot. It matters
	// for private keys only.
	Exposed string
	// Replaceable is why others can put another file in its place, empty when
	// they cannot. It matters for private keys only.
	Replaceable string
	// Unreadable is why there are no blocks, empty when there is no reason.
	Unreadable string
}

// NewFile reads the text of a file. Its place is its name until set.
func NewFile(name string, data []byte) File {
	return File{Name: name, Place: name, Blocks: certs.Scan(data), Empty: isBlank(data)}
}

// there reports whether the file holds anything, read or not.
func (f File) there() bool { return !f.Empty || f.Unreadable != "" }

// At is how a person finds the block number i, counted from 0: by its line, or
// by its number in what has no lines.
func (f File) At(i int) string {
	if line := f.Blocks[i].Line; line > 0 {
		return fmt.Sprintf("%s:%d", f.Place, line)
	}
	return fmt.Sprintf("%s (certificate %d)", f.Place, i+1)
}

func isBlank(data []byte) bool {
	return !slices.ContainsFunc(data, func(b byte) bool { return b > ' ' })
}

// Purpose is what a Set is for.
type Purpose string

// The purposes.
const (
	Loose Purpose = ""     // anything
	CA    Purpose = "ca"   // signs for a mesh
	Leaf  Purpose = "leaf" // is shown to peers
)

// Set is what belongs together: the files of a directory, the keys of a
// Secret, or one file.
type Set struct {
	Place   string
	Purpose Purpose
	Files   []File
	// Missing are the names of the files that the layout wants and that are
	// not there.
	Missing []string
}

// layout is a set of file names with their roles; want are those without
// which it is incomplete.
type layout struct {
	purpose Purpose
	roles   map[string]Role
	want    []string
}

// Names of files and of keys in Secrets.
const (
	caCert, caKey, certChain, rootCert, caCRL = "ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem", "ca-crl.pem"
	tlsCert, tlsKey, tlsRoots                 = "tls.crt", "tls.key", "ca.crt"
	rootKey, leafKey                          = "root-key.pem", "key.pem"
)

// KnownName reports whether a file of this name has to hold PEM.
func KnownName(name string) bool {
	switch name {
	case caCert, caKey, certChain, rootCert, caCRL, tlsCert, tlsKey, tlsRoots, rootKey, leafKey:
		return true
	}
	return false
}

// Arrange gives the files of one directory or Secret their roles, by their
// names: Istio's cacerts (ca-cert.pem, ca-key.pem, cert-chain.pem,
// root-cert.pem, ca-crl.pem), the same as tls.crt, tls.key and ca.crt, a root
// (root-cert.pem, root-key.pem), or the certificate of a server or workload
// (tls.crt; cert-chain.pem with key.pem). Other names keep no role.
func Arrange(place string, files []File) Set {
	s := Set{Place: place, Files: slices.Clone(files)}
	l := layoutOf(files)
	s.Purpose = l.purpose
	for i, f := range s.Files {
		if f.there() {
			s.Files[i].Role = l.roles[f.Name]
		}
	}
	for _, name := range l.want {
		if !slices.ContainsFunc(s.Files, func(f File) bool { return f.Name == name && (f.there() || name == certChain) }) {
			s.Missing = append(s.Missing, name)
		}
	}
	return s
}

func layoutOf(files []File) layout {
	has := func(name string) bool {
		return slices.ContainsFunc(files, func(f File) bool { return f.Name == name && f.there() })
	}
	switch {
	case has(caCert), has(caKey):
		l := layout{
			CA,
			map[string]Role{caCert: RoleCert, caKey: RoleKey, certChain: RoleChain, rootCert: RoleRoots, caCRL: RoleCRL},
			[]string{caCert, caKey, certChain, rootCert},
		}
		if firstCert(files, caCert).selfSigned() {
			l.want = []string{caCert, caKey, rootCert}
		}
		return l
	case has(tlsCert), has(tlsKey):
		l := layout{Leaf, map[string]Role{tlsCert: RoleCert, tlsKey: RoleKey, tlsRoots: RoleRoots, caCRL: RoleCRL}, []string{tlsCert, tlsKey}}
		if c := firstCert(files, tlsCert); c.Certificate != nil && c.IsCA && !isWorkload(c.Certificate) {
			l.purpose, l.want = CA, append(l.want, tlsRoots)
		}
		return l
	case has(rootKey):
		return layout{CA, map[string]Role{rootCert: RoleRoot, rootKey: RoleKey, caCRL: RoleCRL}, []string{rootCert, rootKey}}
	case has(certChain) && has(leafKey):
		return layout{Leaf, map[string]Role{certChain: RoleCert, leafKey: RoleKey, rootCert: RoleRoots}, []string{certChain, leafKey}}
	}
	return layout{}
}

// Signer is what signs for a cluster, nil when the set is not the CA of one.
func (s Set) Signer() *x509.Certificate {
	if s.Purpose != CA {
		return nil
	}
	for _, f := range s.Files {
		for _, b := range f.Blocks {
			if f.Role == RoleCert && b.Cert != nil {
				return b.Cert
			}
		}
	}
	return nil
}

// cert is a certificate with its place.
type cert struct {
	*x509.Certificate
	place string
}

// selfSigned is by names and key ids; the signature is left to others.
func (c cert) selfSigned() bool { return c.Certificate != nil && selfIssued(c.Certificate) }

func firstCert(files []File, name string) cert {
	for _, f := range files {
		if f.Name != name {
			continue
		}
		for _, b := range f.Blocks {
			if b.Cert != nil {
				return cert{b.Cert, ""}
			}
		}
	}
	return cert{}
}

// Options are what a Set is judged by.
type Options struct {
	Now time.Time
	// TrustDomain, if set, is what SPIFFE ids must have and CAs must permit.
	TrustDomain string
	// Aliases are further trust domains that SPIFFE ids may have.
	Aliases []string
	// Roots are trusted beside those of the set.
	Roots []*x509.Certificate
	// Signers are CAs beside those of the set that revocation lists may be of.
	Signers []*x509.Certificate
	// Clusters are what signs for the clusters of the mesh, as far as it is known,
	// and are among Signers: where a CA has lists, it needs one of each of them.
	Clusters []*x509.Certificate
	// Lists are the revocation lists of all places that are judged, this one among
	// them: each should have the newest of a CA.
	Lists []PlacedList
}

// PlacedList is a revocation list and how a person finds it.
type PlacedList struct {
	*x509.RevocationList
	Place string
}
