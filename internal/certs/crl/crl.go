// Package crl makes the revocation lists of a mesh's CAs, and gives every CA the lists
// of all.
package crl

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
)

// Options of Next and Update.
type Options struct {
	// Signers are further CAs that sign lists, such as the new CAs of a running
	// rotation.
	Signers []*certs.Authority
	// Revoke lists the certificates to revoke, all for the same Reason.
	Revoke []Target
	Reason certs.Reason
	// Add are lists from elsewhere.
	Add []*x509.RevocationList
	// DropUnknown drops the lists of unknown CAs.
	DropUnknown bool
	Life        time.Duration // until the next update
	Now         time.Time
	Rand        io.Reader
}

// Target is a certificate to revoke. Either Cert or Serial is set.
type Target struct {
	Name   string // the argument of the command
	Cert   *x509.Certificate
	Serial *big.Int // of a certificate of the only CA
}

// Result of Next and Update.
type Result struct {
	PEM   []byte   // all lists
	Wrote []string // files written by Update
	// Made are new lists, Kept the lists of other CAs.
	Made, Kept []*x509.RevocationList
	Notes      []string // for people
}

// Next makes the next list of each CA, with all earlier revocations, and keeps the lists
// of other CAs. sets have the CAs of clusters with their lists. Next fails if a control
// plane or Envoy could not use the result with one of the sets.
func Next(sets []*store.Material, o Options) (*Result, error) { return (&builder{}).make(sets, o) }

// Update makes the next lists for a directory with the CA of a cluster, or with a root
// and the directories of clusters. It writes them into ca-crl.pem of each directory:
// first of the root, then of all clusters or none.
func Update(dir string, o Options) (_ *Result, err error) {
	d, err := find(dir)
	if err != nil {
		return nil, err
	}
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	b, sets, err := d.read(o.Now)
	if err != nil {
		return nil, err
	}
	result, err := b.make(sets, o)
	if err != nil {
		return nil, err
	}
	result.Wrote, err = d.write(result.PEM)
	return result, err
}

type directory struct {
	path string
	root bool     // it has the key of a root
	one  bool     // it has the CA of a cluster itself
	sets []string // directories with the CA of a cluster
}

func find(path string) (*directory, error) {
	d := &directory{path: filepath.Clean(path)}
	if store.HasAuthority(d.path) {
		d.one, d.sets = true, []string{d.path}
		return d, nil
	}
	clusters, err := store.Clusters(d.path)
	if err != nil {
		return nil, err
	}
	for _, name := range clusters {
		d.sets = append(d.sets, filepath.Join(d.path, string(name)))
	}
	_, err = os.Lstat(filepath.Join(d.path, store.RootKeyFile))
	d.root = err == nil
	if !d.root && len(d.sets) == 0 {
		return nil, fmt.Errorf("%s has neither %s nor the CA of a cluster: name a directory that certs root-ca or certs intermediate-ca made", path, store.RootKeyFile)
	}
	return d, nil
}

// lock prevents other processes from making lists of the same CAs: the revocations of
// one process would be lost.
func (d *directory) lock() (unlock func() error, err error) {
	unlock = func() error { return nil }
	paths := slices.Clone(d.sets)
	if d.root {
		paths = append(paths, d.path)
	}
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, errors.Join(err, unlock())
		}
		last, err := files.Lock(filepath.Join(filepath.Dir(abs), "."+filepath.Base(abs)+".crl.lock"))
		if err != nil {
			return nil, errors.Join(err, unlock())
		}
		earlier := unlock
		unlock = func() error { return errors.Join(last(), earlier()) }
	}
	return unlock, nil
}

func (d *directory) read(now time.Time) (*builder, []*store.Material, error) {
	b := &builder{}
	if d.root {
		root, err := store.LoadRoot(d.path, now)
		if err != nil {
			return nil, nil, err
		}
		b.addSigner(root)
		path := filepath.Join(d.path, store.CRLFile)
		data, err := files.Read(path, store.MaxFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		if err == nil {
			b.files = append(b.files, listFile{path, data})
		}
	}
	var sets []*store.Material
	for _, path := range d.sets {
		m, err := store.Read(path)
		if err != nil {
			return nil, nil, err
		}
		sets = append(sets, m)
	}
	return b, sets, nil
}

func (d *directory) write(data []byte) (wrote []string, err error) {
	file := files.File{Name: store.CRLFile, Data: data, Mode: files.Public}
	if d.root {
		path := filepath.Join(d.path, store.CRLFile)
		if err := files.Write(path, data, files.Public); err != nil {
			return nil, err
		}
		wrote = append(wrote, path)
	}
	force := files.Options{Force: true}
	if d.one {
		err = files.WriteDir(d.path, []files.File{file}, force)
	} else {
		dirs := make([]files.Dir, len(d.sets))
		for i, path := range d.sets {
			dirs[i] = files.Dir{Name: filepath.Base(path), Files: []files.File{file}}
		}
		if len(dirs) > 0 {
			err = files.WriteDirs(d.path, dirs, force)
		}
	}
	if err != nil {
		return wrote, err
	}
	for _, path := range d.sets {
		wrote = append(wrote, filepath.Join(path, store.CRLFile))
	}
	return wrote, nil
}

type listFile struct {
	place string
	data  []byte
}

// builder makes the next lists of CAs from their last ones.
type builder struct {
	signers []*certs.Authority
	single  bool // there is one CA, to which serial numbers belong
	known   []*x509.Certificate
	files   []listFile

	last []*x509.RevocationList // the last list of each signer, nil for none
	rest []*x509.RevocationList // the last lists of other CAs, in order of arrival
}

func (b *builder) make(sets []*store.Material, o Options) (*Result, error) {
	for _, s := range sets {
		a, err := s.Signer(verify.Options{Now: o.Now})
		if err != nil {
			return nil, fmt.Errorf("load CA: %w", err)
		}
		b.addSigner(a)
		b.known = append(append(b.known, a.Chain...), a.Roots...)
		if data, there := s.CRL(); there {
			b.files = append(b.files, listFile{s.CRLPlace, data})
		}
	}
	b.single = len(b.signers) == 1
	for _, a := range o.Signers {
		b.addSigner(a)
	}
	if err := b.collect(o.Add); err != nil {
		return nil, err
	}
	result, err := b.next(o)
	if err != nil {
		return nil, err
	}
	result.PEM = certs.EncodeCRLs(slices.Concat(result.Made, result.Kept)...)
	if n := len(result.PEM); n > store.MaxFile {
		return nil, fmt.Errorf("the revocation lists have %d bytes, more than the %d that are read again", n, store.MaxFile)
	}
	elsewhere := func(l *x509.RevocationList) bool { return b.knownSigner(l) == nil }
	if len(sets) == 1 && len(o.Revoke) > 0 && slices.ContainsFunc(result.Kept, elsewhere) {
		result.Notes = append(result.Notes, fmt.Sprintf("other clusters have lists, too; they learn of the revocation only after you add the list of %s there, with --add", sets[0].Place))
	}
	return result, b.check(result.PEM, sets, o.Now)
}

// check refuses lists that are unusable with one of the sets.
func (b *builder) check(data []byte, sets []*store.Material, now time.Time) error {
	judge := verify.Options{Now: now}
	for _, a := range b.signers {
		judge.Signers = append(judge.Signers, a.Cert)
	}
	for _, s := range sets {
		r, err := s.WithCRL(data).Revocations(judge)
		if err == nil {
			err = verify.Refuse(r.Findings)
		}
		if err != nil {
			return fmt.Errorf("the lists could not be used with the CA of %s, so nothing is written; a list of a CA whose key is elsewhere must be made there and added with --add: %w", s.Place, err)
		}
	}
	return nil
}

// addSigner adds a CA unless there is one with the same name and key.
func (b *builder) addSigner(a *certs.Authority) {
	b.known = append(b.known, a.Cert)
	for _, s := range b.signers {
		if bytes.Equal(s.Cert.RawSubject, a.Cert.RawSubject) && bytes.Equal(s.Cert.RawSubjectPublicKeyInfo, a.Cert.RawSubjectPublicKeyInfo) {
			return
		}
	}
	b.signers = append(b.signers, a)
}

// collect finds the last list of each CA.
func (b *builder) collect(add []*x509.RevocationList) error {
	b.last = make([]*x509.RevocationList, len(b.signers))
	for _, s := range b.files {
		lists, err := certs.ParseCRLs(s.data)
		if err != nil {
			return fmt.Errorf("%s: %w; nothing is written, as what it revokes would be lost", s.place, err)
		}
		for _, l := range lists {
			b.take(l)
		}
	}
	for _, l := range add {
		b.take(l)
	}
	return nil
}

func (b *builder) take(l *x509.RevocationList) {
	if i := slices.IndexFunc(b.signers, func(a *certs.Authority) bool { return certs.IssuedCRL(a.Cert, l) }); i >= 0 {
		if b.last[i] == nil || certs.NewerCRL(l, b.last[i]) {
			b.last[i] = l
		}
		return
	}
	by := b.knownSigner(l)
	i := slices.IndexFunc(b.rest, func(x *x509.RevocationList) bool {
		if by != nil {
			return certs.IssuedCRL(by, x)
		}
		return bytes.Equal(x.RawIssuer, l.RawIssuer) && bytes.Equal(x.AuthorityKeyId, l.AuthorityKeyId) && b.knownSigner(x) == nil
	})
	switch {
	case i < 0:
		b.rest = append(b.rest, l)
	case certs.NewerCRL(l, b.rest[i]):
		b.rest[i] = l
	}
}

// knownSigner returns the certificate that signed a list, or nil.
func (b *builder) knownSigner(l *x509.RevocationList) *x509.Certificate {
	for _, c := range b.known {
		if certs.IssuedCRL(c, l) {
			return c
		}
	}
	return nil
}

func (b *builder) next(o Options) (*Result, error) {
	r := &Result{}
	revoked := make([][]certs.Revocation, len(b.signers))
	for _, t := range o.Revoke {
		i, serial, err := b.signerOf(t)
		if err != nil {
			return nil, err
		}
		if before := entry(b.last[i], serial); before != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: it was revoked at %s already", t.Name, before.RevocationTime.UTC().Format(time.RFC3339)))
			continue
		}
		revoked[i] = append(revoked[i], certs.Revocation{Serial: serial, At: o.Now, Reason: o.Reason})
	}
	for i, a := range b.signers {
		list, err := a.SignCRL(b.last[i], revoked[i], o.Life, o.Now, o.Rand)
		if err != nil {
			return nil, err
		}
		r.Made = append(r.Made, list)
	}
	for _, l := range b.rest {
		unknown := b.knownSigner(l) == nil
		switch ended := !l.NextUpdate.IsZero() && o.Now.After(l.NextUpdate); {
		case unknown && o.DropUnknown:
			r.Notes = append(r.Notes, fmt.Sprintf("left out the list of %q: its CA is unknown here", l.Issuer))
		case unknown && ended:
			r.Notes = append(r.Notes, fmt.Sprintf("left out the list of %q, which ended at %s: its CA is unknown here", l.Issuer, l.NextUpdate.UTC().Format(time.RFC3339)))
		default:
			r.Kept = append(r.Kept, l)
		}
	}
	return r, nil
}

// signerOf returns the index of the CA that signed a certificate, and the serial number.
func (b *builder) signerOf(t Target) (int, *big.Int, error) {
	if t.Cert == nil {
		if !b.single {
			return 0, nil, fmt.Errorf("%s: a serial number does not identify the CA; name the directory of the CA that signed the certificate", t.Name)
		}
		return 0, t.Serial, nil
	}
	if certs.SelfSigned(t.Cert) {
		return 0, nil, fmt.Errorf("%s: %q is a root, which cannot be revoked; replace it with certs rotate-root", t.Name, t.Cert.Subject)
	}
	for i, a := range b.signers {
		if t.Cert.CheckSignatureFrom(a.Cert) == nil {
			return i, t.Cert.SerialNumber, nil
		}
	}
	return 0, nil, fmt.Errorf("%s: it was signed by %q, whose key is not here; name the directory of that CA", t.Name, t.Cert.Issuer)
}

// entry returns the entry of a serial number. The list may be nil.
func entry(l *x509.RevocationList, serial *big.Int) *x509.RevocationListEntry {
	if l != nil {
		for i, e := range l.RevokedCertificateEntries {
			if e.SerialNumber.Cmp(serial) == 0 {
				return &l.RevokedCertificateEntries[i]
			}
		}
	}
	return nil
}
