// Package verify finds faults of certificates, keys, chains, trust bundles and
// revocation lists. A finding has a code, a place, a reason and a fix. The package is
// pure: callers pass in files and the time. The command certs verify and the control
// plane share it.
package verify

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// Role is the purpose of a file.
type Role string

// The roles. A file without a role may hold anything.
const (
	RoleCert  Role = "certificate" // a signer or server certificate; its chain may follow
	RoleKey   Role = "key"         // the key of RoleCert
	RoleChain Role = "chain"       // RoleCert, then the signer of each preceding certificate
	RoleRoots Role = "roots"       // trusted roots
	RoleCRL   Role = "crl"         // revocation lists
	// RoleRoot is a root that is its own trust bundle.
	RoleRoot Role = "root"
)

// File is one text with PEM: a file, a key of a Secret, or the chain of a server.
type File struct {
	Name   string // the base name, or the key of a Secret
	Place  string // the name of the file for people
	Role   Role
	Blocks []certs.Block
	Empty  bool // only white space
	// Exposed and Replaceable are the reasons why other users can read or replace
	// the file, if they can. They matter for private keys only.
	Exposed, Replaceable string
	// Unreadable is the reason why the file could not be read, if any.
	Unreadable string
}

// NewFile parses the content of a file.
func NewFile(name, place string, data []byte) File {
	return File{Name: name, Place: place, Blocks: certs.Scan(data), Empty: len(bytes.TrimSpace(data)) == 0}
}

// there reports whether the file has content, readable or not.
func (f File) there() bool { return !f.Empty || f.Unreadable != "" }

// Certificates returns the readable certificates of the file.
func (f File) Certificates() []*x509.Certificate {
	var list []*x509.Certificate
	for _, b := range f.Blocks {
		if b.Cert != nil {
			list = append(list, b.Cert)
		}
	}
	return list
}

// At returns the place of block i, counted from 0, with its line or, in the chain of a
// server, its number.
func (f File) At(i int) string {
	if line := f.Blocks[i].Line; line > 0 {
		return fmt.Sprintf("%s:%d", f.Place, line)
	}
	return fmt.Sprintf("%s (certificate %d)", f.Place, i+1)
}

// Purpose is the purpose of a Set.
type Purpose string

// The purposes.
const (
	Loose Purpose = ""     // anything
	CA    Purpose = "ca"   // the CA of a mesh
	Leaf  Purpose = "leaf" // a certificate for peers
)

// Set is a set of related files: the files of a directory, the keys of a Secret, or
// one file.
type Set struct {
	Place   string
	Purpose Purpose
	Files   []File
	// Missing has the names of missing files of the layout.
	Missing []string
}

// layout has the roles of file names. want lists the mandatory ones.
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

// KnownName reports whether a file of this name must hold PEM.
func KnownName(name string) bool {
	switch name {
	case caCert, caKey, certChain, rootCert, caCRL, tlsCert, tlsKey, tlsRoots, rootKey, leafKey:
		return true
	}
	return false
}

// Arrange returns a Set whose files have roles by their names. It knows these layouts:
//
//   - Istio's cacerts: ca-cert.pem, ca-key.pem, cert-chain.pem, root-cert.pem and
//     ca-crl.pem
//   - a CA, server or workload: tls.crt, tls.key, ca.crt
//   - a root: root-cert.pem, root-key.pem
//   - a workload: cert-chain.pem, key.pem, root-cert.pem
//
// Files of other names have no role.
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
		if ca := firstCert(files, caCert); ca != nil && named(ca, ca) { // a root
			l.want = []string{caCert, caKey, rootCert}
		}
		return l
	case has(tlsCert), has(tlsKey):
		l := layout{Leaf, map[string]Role{tlsCert: RoleCert, tlsKey: RoleKey, tlsRoots: RoleRoots, caCRL: RoleCRL}, []string{tlsCert, tlsKey}}
		if c := firstCert(files, tlsCert); c != nil && c.IsCA && !isWorkload(c) {
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

// Signer returns the signing certificate of a CA, or nil for other sets.
func (s Set) Signer() *x509.Certificate {
	if s.Purpose != CA {
		return nil
	}
	i := slices.IndexFunc(s.Files, func(f File) bool { return f.Role == RoleCert })
	if i < 0 {
		return nil
	}
	return firstCert(s.Files, s.Files[i].Name)
}

// cert is a certificate with its place.
type cert struct {
	*x509.Certificate
	place string
}

// firstCert returns the first certificate in the file of this name, or nil.
func firstCert(files []File, name string) *x509.Certificate {
	for _, f := range files {
		if f.Name != name {
			continue
		}
		if list := f.Certificates(); len(list) > 0 {
			return list[0]
		}
	}
	return nil
}

// Options of Check.
type Options struct {
	Now time.Time
	// TrustDomain, if set, is the trust domain that SPIFFE ids must have and CAs must
	// permit. Aliases are further trust domains for SPIFFE ids.
	TrustDomain string
	Aliases     []string
	// Roots are trusted in addition to the roots of the set.
	Roots []*x509.Certificate
	// Signers are CAs outside the set that may have signed revocation lists.
	Signers []*x509.Certificate
	// Clusters are the known signers of all clusters of the mesh, a subset of
	// Signers. A CA with revocation lists needs one of each.
	Clusters []*x509.Certificate
	// Lists are the revocation lists of all places of the mesh, including this set. A
	// set should have the newest list of each CA.
	Lists []PlacedList
}

// PlacedList is a revocation list with its place.
type PlacedList struct {
	*x509.RevocationList
	Place string
}
