package store

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
)

// materialFile is a file of an authority's directory and how much of it is
// read.
type materialFile struct {
	name  string
	limit int64
}

// secret reports whether the file holds a private key.
func (f materialFile) secret() bool { return f.name == caKeyFile || f.name == tlsKeyFile }

// materialFiles are the files of both layouts. It is a function and not a
// variable, for nothing may change it.
func materialFiles() []materialFile {
	return []materialFile{
		{caCertFile, maxCerts},
		{caKeyFile, maxKey},
		{certChainFile, maxCerts},
		{rootCertFile, maxCerts},
		{crlFile, maxCRL},
		{tlsCertFile, maxCerts},
		{tlsKeyFile, maxKey},
		{tlsRootsFile, maxCerts},
	}
}

// Stamp tells one content of a directory from another without reading it.
// Stamps are compared with ==.
type Stamp struct {
	// Directory tells the directory from another one of the name.
	Directory string
	// Version is, where the directory is mounted, what its ..data leads to.
	// With Directory or Version all files change at once.
	Version string
	files   string
}

// StampOf returns the stamp of dir as it is now, whatever it is.
func StampOf(dir string) Stamp {
	var s Stamp
	s.Version, _ = os.Readlink(filepath.Join(dir, "..data"))
	s.Directory = stampOf(dir, false)
	var b strings.Builder
	for _, f := range materialFiles() {
		b.WriteString(stampOf(filepath.Join(dir, f.name), true) + ";")
	}
	s.files = b.String()
	return s
}

func stampOf(path string, content bool) string {
	info, err := os.Stat(path)
	if err != nil {
		pathError := &fs.PathError{}
		if errors.As(err, &pathError) {
			err = pathError.Err
		}
		return err.Error()
	}
	id := files.Identity(info)
	if !content {
		return id
	}
	return fmt.Sprint(id, " ", info.Mode(), " ", info.Size(), " ", info.ModTime().UnixNano())
}

// Material is what the directory of an authority held at one moment, good or
// bad.
type Material struct {
	Stamp Stamp
	set   verify.Set
	data  map[string][]byte
	again bool // reading it again may give more
}

// maxReads is how often a directory is read that changes meanwhile.
const maxReads = 5

// Read reads the files of an authority in dir: ca-cert.pem, ca-key.pem,
// cert-chain.pem, root-cert.pem and ca-crl.pem, or tls.crt, tls.key and
// ca.crt. All are of one moment: when the directory changes meanwhile, it is
// read again. The error is that it keeps changing; what cannot be read is a
// finding of Authority. When it may be read soon, as after a want of file
// descriptors, the Stamp is the zero value, which is no directory's.
func Read(dir string) (*Material, error) {
	before := StampOf(dir)
	for range maxReads {
		m := read(dir)
		m.Stamp = StampOf(dir)
		if m.Stamp == before {
			if m.again {
				m.Stamp = Stamp{}
			}
			return m, nil
		}
		before = m.Stamp
	}
	return nil, fmt.Errorf("read the CA of %s: it changes while it is read", dir)
}

func read(dir string) *Material {
	m := &Material{data: map[string][]byte{}}
	var found []verify.File
	for _, f := range materialFiles() {
		path := filepath.Join(dir, f.name)
		data, err := readMaterial(path, f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		file := verify.NewFile(f.name, data)
		file.Place = path
		if err != nil {
			file.Unreadable = err.Error()
			m.again = m.again || files.Transient(err)
			if exposed := files.CheckSecret(path); f.secret() && exposed != nil && !files.Transient(exposed) {
				file.Exposed = exposed.Error()
			}
		} else if f.secret() {
			if open := files.CheckReplaceable(path); open != nil {
				file.Replaceable = open.Error()
			}
		}
		m.data[f.name] = data
		found = append(found, file)
	}
	m.set = verify.Arrange(dir, found)
	return m
}

// FromSecret returns what a Secret holds under the names of the files of Read.
// The place is the Secret for people, the version is that of the data. As in
// Istio's istio-ca-secret, the chain of a self-signed CA may be empty.
func FromSecret(place, version string, data map[string][]byte) *Material {
	m := &Material{Stamp: Stamp{Version: version}, data: map[string][]byte{}}
	var found []verify.File
	for _, f := range materialFiles() {
		value, ok := data[f.name]
		if !ok || f.name == certChainFile && len(value) == 0 {
			continue
		}
		file := verify.NewFile(f.name, value)
		if int64(len(value)) > f.limit {
			file = verify.File{Name: f.name, Unreadable: fmt.Sprintf("it has more than %d bytes", f.limit)}
		}
		file.Place = place + ", " + f.name
		m.data[f.name] = value
		found = append(found, file)
	}
	m.set = verify.Arrange(place, found)
	return m
}

func readMaterial(path string, f materialFile) ([]byte, error) {
	if f.secret() {
		return files.ReadSecret(path, f.limit)
	}
	return files.Read(path, f.limit)
}

// Empty reports whether the directory holds nothing of an authority, or is not
// there.
func (m *Material) Empty() bool { return len(m.data) == 0 }

// Certificates returns those that could be read, of a directory good or bad:
// of the signer's file, of its chain, and the roots.
func (m *Material) Certificates() (signer, chain, roots []*x509.Certificate) {
	for _, f := range m.set.Files {
		var list []*x509.Certificate
		for _, b := range f.Blocks {
			if b.Cert != nil {
				list = append(list, b.Cert)
			}
		}
		switch f.Name {
		case caCertFile:
			signer = list
		case certChainFile:
			chain = list
		case rootCertFile, tlsRootsFile:
			roots = list
		case tlsCertFile:
			if signer == nil {
				signer, chain = list, list
			}
		}
	}
	return signer, chain, roots
}

// Authority returns what the directory holds if peers will accept what it
// signs, with what is wrong with it all the same. Revocation lists that cannot
// be used do not matter here. The error is a *verify.Failure.
func (m *Material) Authority(o verify.Options) (*certs.Authority, []verify.Finding, error) {
	if m.set.Purpose != verify.CA {
		return nil, nil, m.incomplete()
	}
	a, found, err := m.signer(o)
	if err != nil {
		return nil, nil, err
	}
	revoked := slices.DeleteFunc(verify.Check(m.set, o), func(f verify.Finding) bool { return f.Code != verify.Revoked })
	if err := verify.Refuse(revoked); err != nil {
		return nil, nil, err
	}
	return a, found, nil
}

// Signer is Authority whatever the revocation lists say: who was revoked may
// still sign such lists.
func (m *Material) Signer(o verify.Options) (*certs.Authority, error) {
	if m.set.Purpose != verify.CA {
		return nil, m.incomplete()
	}
	a, _, err := m.signer(o)
	return a, err
}

func (m *Material) signer(o verify.Options) (*certs.Authority, []verify.Finding, error) {
	found := verify.Check(m.withoutCRL(), o)
	if err := verify.Refuse(found); err != nil {
		return nil, nil, err
	}
	a, err := certs.LoadAuthority(m.pems(), o.Now)
	if err != nil {
		return nil, nil, m.fail(verify.Rejected, err.Error(), "make the certificates again")
	}
	return a, found, nil
}

func (m *Material) incomplete() error {
	return m.fail(verify.Incomplete, fmt.Sprintf("%s, %s, %s and %s, or %s, %s and %s, are missing",
		caCertFile, caKeyFile, certChainFile, rootCertFile, tlsCertFile, tlsKeyFile, tlsRootsFile),
		"add the files; meshctl certs intermediate-ca writes all of them")
}

func (m *Material) fail(code verify.Code, reason, fix string) error {
	return &verify.Failure{Findings: []verify.Finding{
		{Severity: verify.Error, Code: code, Place: m.set.Place, Reason: reason, Fix: fix},
	}}
}

func (m *Material) withoutCRL() verify.Set {
	s := m.set
	s.Files = slices.DeleteFunc(slices.Clone(s.Files), func(f verify.File) bool { return f.Name == crlFile })
	return s
}

// pems are the files by their use.
func (m *Material) pems() certs.PEMs {
	if _, istio := m.data[caCertFile]; istio {
		return certs.PEMs{Cert: m.data[caCertFile], Key: m.data[caKeyFile], Chain: m.data[certChainFile], Roots: m.data[rootCertFile]}
	}
	p := certs.PEMs{Key: m.data[tlsKeyFile], Chain: m.data[tlsCertFile], Roots: m.data[tlsRootsFile]}
	// tls.crt has what leads to the root, too.
	if chain, err := certs.ParseCerts(p.Chain); err == nil {
		p.Cert = certs.EncodeCerts(chain[0])
	}
	return p
}

// CRL returns the file with the revocation lists, and whether there is one.
func (m *Material) CRL() (data []byte, there bool) {
	data, there = m.data[crlFile]
	return data, there
}

// WithCRL returns the material with another file of revocation lists, at a place.
func (m *Material) WithCRL(place string, data []byte) *Material {
	file := verify.NewFile(crlFile, data)
	file.Place = place
	next := &Material{Stamp: m.Stamp, data: maps.Clone(m.data)}
	next.data[crlFile] = data
	next.set = verify.Arrange(m.set.Place, append(m.withoutCRL().Files, file))
	return next
}

// Revocations are the revocation lists of an authority's directory.
type Revocations struct {
	PEM   []byte // the file as it is, empty when there is none
	Lists []*x509.RevocationList
	// Findings are what is wrong with lists that count all the same: one that
	// is out of date still names what is revoked. Peers would refuse everybody
	// for it.
	Findings []verify.Finding
	// Warnings are what is not wrong yet, or perhaps.
	Warnings []verify.Finding
}

// Revocations returns the revocation lists. The error, a *verify.Failure, is
// that they cannot be used; what they revoke of the authority itself is none.
func (m *Material) Revocations(o verify.Options) (Revocations, error) {
	i := slices.IndexFunc(m.set.Files, func(f verify.File) bool { return f.Name == crlFile })
	if i < 0 {
		return Revocations{}, nil
	}
	r := Revocations{PEM: m.data[crlFile]}
	var bad []verify.Finding
	for _, f := range verify.Check(m.set, o) {
		switch {
		case f.Code == verify.CRLStale, f.Code == verify.CRLMissing:
			r.Findings = append(r.Findings, f)
		case f.Severity == verify.Warning && strings.HasPrefix(f.Place, m.set.Files[i].Place+":"):
			r.Warnings = append(r.Warnings, f)
		case f.Severity == verify.Error && f.Code != verify.Revoked:
			bad = append(bad, f)
		}
	}
	if err := verify.Refuse(bad); err != nil {
		return Revocations{}, err
	}
	for _, b := range m.set.Files[i].Blocks {
		if b.CRL != nil {
			r.Lists = append(r.Lists, b.CRL)
		}
	}
	return r, nil
}
