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

// materialFile is a file of a CA with its size limit.
type materialFile struct {
	name  string
	limit int64
}

// materialFiles returns the files of both layouts.
func materialFiles() []materialFile {
	return []materialFile{
		{CertFile, maxCerts},
		{KeyFile, maxKey},
		{certChainFile, maxCerts},
		{RootCertFile, maxCerts},
		{CRLFile, MaxFile},
		{TLSCertFile, maxCerts},
		{tlsKeyFile, maxKey},
		{tlsRootsFile, maxCerts},
	}
}

// Stamp identifies the content of a directory or Secret without reading it. Compare
// stamps with ==.
type Stamp struct {
	// Directory identifies the directory itself.
	Directory string
	// Version is the target of ..data in a mounted directory, or the version of a
	// Secret. If Directory or Version changes, all files change at once.
	Version string
	files   string
}

// StampOf returns the current stamp of dir, even if dir does not exist.
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
		if pathError, ok := errors.AsType[*fs.PathError](err); ok {
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

// Material holds the files of a CA at one moment, valid or not.
type Material struct {
	Stamp Stamp
	Place string // the directory or the Secret, for people
	// CRLPlace is the place of the revocation lists, even if there are none.
	CRLPlace string

	set   verify.Set
	data  map[string][]byte
	again bool // reading again may succeed
}

// maxReads is the number of attempts to read a changing directory.
const maxReads = 5

// Read reads the files of a CA in dir, in either layout. All files are from one
// moment: Read starts again if the directory changes, and fails if it keeps changing.
// Unreadable files become findings of Authority. After a temporary failure, such as a
// lack of file descriptors, the Stamp is the zero value, which equals no other stamp.
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
	m := &Material{Place: dir, CRLPlace: filepath.Join(dir, CRLFile), data: map[string][]byte{}}
	var found []verify.File
	for _, f := range materialFiles() {
		path := filepath.Join(dir, f.name)
		data, err := readMaterial(path, f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		file := verify.NewFile(f.name, path, data)
		if err != nil {
			file.Unreadable = err.Error()
			m.again = m.again || files.Transient(err)
			if exposed := files.CheckSecret(path); IsKey(f.name) && exposed != nil && !files.Transient(exposed) {
				file.Exposed = exposed.Error()
			}
		} else if IsKey(f.name) {
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

// FromSecret returns the files of a CA in the data of a Secret. The place is the name of
// the Secret for people. As in Istio's istio-ca-secret, the chain may be empty.
func FromSecret(place, version string, data map[string][]byte) *Material {
	m := &Material{Stamp: Stamp{Version: version}, Place: place, CRLPlace: place + ", " + CRLFile, data: map[string][]byte{}}
	var found []verify.File
	for _, f := range materialFiles() {
		value, ok := data[f.name]
		if !ok || f.name == certChainFile && len(value) == 0 {
			continue
		}
		at := place + ", " + f.name
		file := verify.NewFile(f.name, at, value)
		if int64(len(value)) > f.limit {
			file = verify.File{Name: f.name, Place: at, Unreadable: fmt.Sprintf("it has more than %d bytes", f.limit)}
		}
		m.data[f.name] = value
		found = append(found, file)
	}
	m.set = verify.Arrange(place, found)
	return m
}

// FromFiles returns the files of a CA. The place is their directory or Secret for people.
func FromFiles(place string, set []files.File) *Material { return FromSecret(place, "", dataOf(set)) }

// dataOf returns files as the data of a Secret.
func dataOf(set []files.File) map[string][]byte {
	data := map[string][]byte{}
	for _, f := range set {
		data[f.Name] = f.Data
	}
	return data
}

func readMaterial(path string, f materialFile) ([]byte, error) {
	if IsKey(f.name) {
		return files.ReadSecret(path, f.limit)
	}
	return files.Read(path, f.limit)
}

// Check returns the faults of all files.
func (m *Material) Check(o verify.Options) []verify.Finding { return verify.Check(m.set, o) }

// Empty reports whether there is no file of a CA.
func (m *Material) Empty() bool { return len(m.data) == 0 }

// Certificates returns the readable certificates: the signer, nil if there is none, its
// chain and the roots.
func (m *Material) Certificates() (signer *x509.Certificate, chain, roots []*x509.Certificate) {
	for _, f := range m.set.Files {
		list := f.Certificates()
		switch {
		case IsSigner(f.Name) && len(list) > 0 && signer == nil:
			signer = list[0]
			if f.Name == TLSCertFile {
				chain = list
			}
		case f.Name == certChainFile:
			chain = list
		case IsRoots(f.Name):
			roots = list
		}
	}
	return signer, chain, roots
}

// Authority returns the CA if peers will accept its leaves, with warnings. Only the
// entries of revocation lists count, not their faults. The error is a
// *verify.Failure.
func (m *Material) Authority(o verify.Options) (*certs.Authority, []verify.Finding, error) {
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

// Signer returns the CA even if it is revoked: it may still sign revocation lists.
func (m *Material) Signer(o verify.Options) (*certs.Authority, error) {
	a, _, err := m.signer(o)
	return a, err
}

func (m *Material) signer(o verify.Options) (*certs.Authority, []verify.Finding, error) {
	if m.set.Purpose != verify.CA {
		return nil, nil, m.fail(verify.Incomplete, fmt.Sprintf("%s, %s, %s and %s, or %s, %s and %s, are missing",
			CertFile, KeyFile, certChainFile, RootCertFile, TLSCertFile, tlsKeyFile, tlsRootsFile),
			"add the files; meshctl certs intermediate-ca writes all of them")
	}
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

func (m *Material) fail(code verify.Code, reason, fix string) error {
	return &verify.Failure{Findings: []verify.Finding{
		{Severity: verify.Error, Code: code, Place: m.Place, Reason: reason, Fix: fix},
	}}
}

func (m *Material) withoutCRL() verify.Set {
	s := m.set
	s.Files = slices.DeleteFunc(slices.Clone(s.Files), func(f verify.File) bool { return f.Name == CRLFile })
	return s
}

// pems returns the files by their use.
func (m *Material) pems() certs.PEMs {
	if _, istio := m.data[CertFile]; istio {
		return certs.PEMs{Cert: m.data[CertFile], Key: m.data[KeyFile], Chain: m.data[certChainFile], Roots: m.data[RootCertFile]}
	}
	p := certs.PEMs{Key: m.data[tlsKeyFile], Chain: m.data[TLSCertFile], Roots: m.data[tlsRootsFile]}
	// tls.crt also has the chain.
	if chain, err := certs.ParseCerts(p.Chain); err == nil {
		p.Cert = certs.EncodeCerts(chain[0])
	}
	return p
}

// CRL returns the file with the revocation lists, if there is one.
func (m *Material) CRL() (data []byte, there bool) {
	data, there = m.data[CRLFile]
	return data, there
}

// WithCRL returns a copy with other revocation lists.
func (m *Material) WithCRL(data []byte) *Material {
	next := *m
	next.data = maps.Clone(m.data)
	next.data[CRLFile] = data
	next.set = verify.Arrange(m.Place, append(m.withoutCRL().Files, verify.NewFile(CRLFile, m.CRLPlace, data)))
	return &next
}

// Revocations are the revocation lists of a CA.
type Revocations struct {
	PEM   []byte // the unchanged file, empty if there is none
	Lists []*x509.RevocationList
	// Findings report missing and stale lists. A stale list still revokes, but peers
	// that use it refuse every certificate.
	Findings []verify.Finding
	Warnings []verify.Finding
}

// Revocations returns the revocation lists. It fails with a *verify.Failure if they are
// unusable. It is no failure if they revoke the CA itself.
func (m *Material) Revocations(o verify.Options) (Revocations, error) {
	i := slices.IndexFunc(m.set.Files, func(f verify.File) bool { return f.Name == CRLFile })
	if i < 0 {
		return Revocations{}, nil
	}
	r := Revocations{PEM: m.data[CRLFile]}
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
