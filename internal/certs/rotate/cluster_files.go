package rotate

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// cluster has everything that a rotation writes into the directory of a cluster.
type cluster struct {
	name      mesh.ClusterID
	layout    store.Layout
	authority *certs.Authority // the old CA; only at the start
	// old and fresh are the files of the old and the new CA.
	old, fresh []files.File
	// both is the trust bundle with both roots, alone the one without the old root.
	both, alone []byte
}

// prepare makes the new files and bundles. It keeps the old files byte for byte, and
// foreign roots in the bundles.
func (c *cluster) prepare(old, root *x509.Certificate, signer *certs.Authority) (err error) {
	others := slices.DeleteFunc(slices.Clone(c.authority.Roots), old.Equal)
	c.both = certs.EncodeCerts(append(slices.Clone(c.authority.Roots), root)...)
	c.alone = certs.EncodeCerts(append([]*x509.Certificate{root}, others...)...)
	c.fresh, err = store.SecretFiles(signer, nil, c.layout)
	return err
}

// set returns the content of the cluster's directory in a phase.
func (c *cluster) set(p Phase) []files.File {
	from, roots := c.old, c.both
	switch p {
	case Trust, Back:
	case Sign:
		from = c.fresh
	case Finished:
		from, roots = c.fresh, c.alone
	case Aborted:
		return c.old
	}
	out := slices.Clone(from)
	for i, f := range out {
		if store.IsRoots(f.Name) {
			out[i].Data = roots
		}
	}
	return out
}

// all returns the files of the old and the new CA.
func (c *cluster) all() []files.File { return append(slices.Clone(c.old), c.set(Finished)...) }

// Infixes of the files that keep the sets of a cluster, after its name, which has no
// dots.
const (
	oldPrefix  = ".old."
	newPrefix  = ".new."
	bothBundle = ".both." + store.RootCertFile
)

// keep returns the files of the cluster for the directory of the rotation.
func (c *cluster) keep() []files.File {
	name := string(c.name)
	out := []files.File{{Name: name + bothBundle, Data: c.both, Mode: files.Public}}
	for _, f := range c.old {
		f.Name = name + oldPrefix + f.Name
		out = append(out, f)
	}
	for _, f := range c.set(Finished) {
		f.Name = name + newPrefix + f.Name
		out = append(out, f)
	}
	return out
}

// load reads the files of keep.
func load(from Storage, dir string, name mesh.ClusterID) (*cluster, error) {
	c := &cluster{name: name, layout: layoutAt(from, dir, string(name)+oldPrefix)}
	var err error
	if c.old, err = readSet(from, dir, string(name)+oldPrefix); err != nil {
		return nil, err
	}
	if c.fresh, err = readSet(from, dir, string(name)+newPrefix); err != nil {
		return nil, err
	}
	c.both, err = from.Read(filepath.Join(dir, string(name)+bothBundle))
	for _, f := range c.fresh {
		if store.IsRoots(f.Name) {
			c.alone = f.Data
		}
	}
	return c, err
}

// layoutAt returns the layout of the CA in dir, whose file names have a prefix. If
// there are both layouts, Istio's wins, as in the control plane.
func layoutAt(from Storage, dir, prefix string) store.Layout {
	for _, l := range []store.Layout{store.LayoutIstio, store.LayoutTLS} {
		if from.Stat(filepath.Join(dir, prefix+store.Names(l)[0])) == nil {
			return l
		}
	}
	return store.LayoutIstio
}

// readSet reads the files of the CA in dir, whose file names have a prefix.
func readSet(from Storage, dir, prefix string) ([]files.File, error) {
	var (
		out  []files.File
		errs []error
	)
	for _, name := range store.Names(layoutAt(from, dir, prefix)) {
		f := files.File{Name: name, Mode: files.Public}
		var err error
		if path := filepath.Join(dir, prefix+name); store.IsKey(name) {
			f.Mode = files.Secret
			f.Data, err = from.ReadSecret(path)
		} else {
			f.Data, err = from.Read(path)
		}
		errs = append(errs, err)
		out = append(out, f)
	}
	return out, errors.Join(errs...)
}

func equalSets(a, b []files.File) bool {
	return slices.EqualFunc(a, b, func(x, y files.File) bool { return x.Name == y.Name && bytes.Equal(x.Data, y.Data) })
}

// lint checks a set of files together with the revocation lists of the directory. The
// lists may also be signed by CAs in others: during a rotation, old and new CAs are in
// use.
func lint(from Storage, dir string, set []files.File, o verify.Options, others ...files.File) error {
	var list []verify.File
	add := func(name string, data []byte) {
		list = append(list, verify.NewFile(name, from.Place(filepath.Join(dir, name)), data))
	}
	for _, f := range set {
		add(f.Name, f.Data)
	}
	crl, err := from.Read(filepath.Join(dir, store.CRLFile))
	switch {
	case err == nil:
		add(store.CRLFile, crl)
		for _, f := range others {
			if !store.IsKey(f.Name) {
				add("other "+f.Name, f.Data)
			}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return verify.Refuse(verify.Check(verify.Arrange(from.Place(dir), list), o))
}

// facts returns the short SHA-256 of the signer and the roots of a set.
func facts(set []files.File) (signer string, roots []string) {
	cert, _, list := store.FromFiles("", set).Certificates()
	if cert != nil {
		signer = verify.Short(cert)
	}
	for _, r := range list {
		roots = append(roots, verify.Short(r))
	}
	return signer, roots
}

// parseOne reads a file with one certificate.
func parseOne(from Storage, path string) (*x509.Certificate, error) {
	data, err := from.Read(path)
	if err != nil {
		return nil, err
	}
	list, err := certs.ParseCerts(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from.Place(path), err)
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("%s holds %d certificates, want the root alone", from.Place(path), len(list))
	}
	return list[0], nil
}
