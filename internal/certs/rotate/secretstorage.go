package rotate

import (
	"context"
	"crypto/x509"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Secrets of rotations: stateSecret has a running one, and statePrefix begins the names
// of ended ones.
const (
	statePrefix = "meshctl-root"
	stateSecret = statePrefix + "-rotation"
)

// SecretStorage is a Storage in Secrets. The directory of a cluster is its Secret
// cacerts. Each hidden directory is a Secret of the home cluster. The root is the
// common root of all clusters. Writes fail if a Secret changed since it was read.
type SecretStorage struct {
	clusters []*store.ClusterSecrets
	home     *store.ClusterSecrets     // has the state
	have     map[string]*corev1.Secret // by directory
}

// OpenSecretStorage reads the Secrets of the clusters. The home cluster is the one with
// a running rotation, else the first.
func OpenSecretStorage(ctx context.Context, clusters []*store.ClusterSecrets) (*SecretStorage, error) {
	s := &SecretStorage{clusters: clusters, home: clusters[0], have: map[string]*corev1.Secret{}}
	for _, c := range clusters {
		found, err := c.Get(ctx, store.CACerts)
		if err != nil {
			return nil, err
		}
		if found != nil {
			s.have[string(c.ID)] = found
		}
		state, err := c.Get(ctx, stateSecret)
		switch {
		case err != nil:
			return nil, err
		case state == nil:
			continue
		case s.have[keepDir] != nil:
			return nil, fmt.Errorf("%s and %s both hold a rotation; delete the one that is not wanted",
				s.home.Place(stateSecret), c.Place(stateSecret))
		}
		s.have[keepDir], s.home = state, c
	}
	for _, c := range clusters {
		if s.have[keepDir] == nil && s.have[string(c.ID)] == nil {
			return nil, c.Absent(store.CACerts)
		}
	}
	return s, nil
}

// split splits a path; dir is "" for the directory of the mesh.
func split(name string) (dir, file string) {
	dir, file = path.Split(name)
	return strings.TrimSuffix(dir, "/"), file
}

// secret returns the cluster and the name of a directory's Secret. It returns false for
// a cluster that was not given.
func (s *SecretStorage) secret(dir string) (c *store.ClusterSecrets, name string, known bool) {
	if strings.HasPrefix(dir, ".") {
		return s.home, statePrefix + strings.ReplaceAll(dir, ".", "-"), true
	}
	i := slices.IndexFunc(s.clusters, func(c *store.ClusterSecrets) bool { return string(c.ID) == dir })
	if i < 0 {
		return nil, "", false
	}
	return s.clusters[i], store.CACerts, true
}

// unnamed returns the error for a cluster that was not given.
func unnamed(cluster string) error {
	return fmt.Errorf("the cluster %s is part of the rotation: name its context, too", cluster)
}

// Place returns the name of a path for people.
func (s *SecretStorage) Place(name string) string {
	if name == "" {
		contexts := make([]string, len(s.clusters))
		for i, c := range s.clusters {
			contexts[i] = c.Context
		}
		return "the clusters " + strings.Join(contexts, ", ")
	}
	if isRootFile(name) {
		return "the root of the clusters (" + name + ")"
	}
	dir, file := split(name)
	if dir == "" {
		dir, file = file, ""
	}
	c, secret, known := s.secret(dir)
	switch {
	case !known:
		return dir + " (not named)"
	case file == "":
		return c.Place(secret)
	}
	return c.Place(secret) + ", " + file
}

// isRootFile reports whether a path is a file of the root.
func isRootFile(name string) bool { return name == store.RootCertFile || name == store.RootKeyFile }

// Lock does nothing: writes detect concurrent changes.
func (s *SecretStorage) Lock(string) (unlock func() error, err error) {
	return func() error { return nil }, nil
}

// Stat returns nil if the path exists.
func (s *SecretStorage) Stat(name string) error {
	dir, file := split(name)
	switch {
	case name == "":
		return nil
	case dir != "" || isRootFile(name):
		_, err := s.Read(name)
		return err
	case s.have[file] != nil:
		return nil
	}
	if _, _, known := s.secret(file); !known {
		return unnamed(file)
	}
	return fmt.Errorf("%s: %w", s.Place(name), fs.ErrNotExist)
}

// Clusters returns the clusters with a CA Secret.
func (s *SecretStorage) Clusters(string) ([]mesh.ClusterID, error) {
	var ids []mesh.ClusterID
	for _, c := range s.clusters {
		if s.have[string(c.ID)] != nil {
			ids = append(ids, c.ID)
		}
	}
	return ids, nil
}

// Read returns the value of a key of a Secret.
func (s *SecretStorage) Read(name string) ([]byte, error) {
	dir, file := split(name)
	if dir == "" {
		return s.root(file)
	}
	if _, _, known := s.secret(dir); !known {
		return nil, unnamed(dir)
	}
	if secret := s.have[dir]; secret != nil {
		if data, ok := secret.Data[file]; ok {
			return data, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", s.Place(name), fs.ErrNotExist)
}

// ReadSecret is Read. The cluster controls who may read Secrets.
func (s *SecretStorage) ReadSecret(name string) ([]byte, error) { return s.Read(name) }

// root returns the root certificate that the signers of all clusters lead to. Its key
// is not in the Secrets.
func (s *SecretStorage) root(file string) ([]byte, error) {
	if file != store.RootCertFile {
		return nil, fmt.Errorf("%s: %w", s.Place(file), fs.ErrNotExist)
	}
	var root *x509.Certificate
	for _, c := range s.clusters {
		secret := s.have[string(c.ID)]
		if secret == nil {
			continue
		}
		signer, chain, roots := store.FromSecret("", "", secret.Data).Certificates()
		top := topOf(append(chain, signer), roots)
		switch {
		case top == nil:
			return nil, fmt.Errorf("%s: its signer leads to none of its roots", c.Place(store.CACerts))
		case root != nil && !root.Equal(top):
			return nil, fmt.Errorf("%s: its root is %s, but that of other clusters is %s; rotate clusters of different roots apart from each other",
				c.Place(store.CACerts), verify.Describe(top), verify.Describe(root))
		}
		root = top
	}
	if root == nil {
		return nil, fmt.Errorf("%s: %w", s.Place(file), fs.ErrNotExist)
	}
	return certs.EncodeCerts(root), nil
}

// topOf returns the root that signed one of the certificates.
func topOf(list, roots []*x509.Certificate) *x509.Certificate {
	for _, root := range roots {
		for _, c := range list {
			if c != nil && (c.Equal(root) || c.CheckSignatureFrom(root) == nil) {
				return root
			}
		}
	}
	return nil
}

// Material reads the CA of a cluster.
func (s *SecretStorage) Material(dir string) (*store.Material, error) {
	secret := s.have[dir]
	if secret == nil {
		return nil, fmt.Errorf("%s: %w", s.Place(dir), fs.ErrNotExist)
	}
	return store.FromSecret(s.Place(dir), "", secret.Data), nil
}

// WriteDir writes keys of a Secret and keeps the others. It does not write the root of
// the mesh, which stays with the ended rotation.
func (s *SecretStorage) WriteDir(ctx context.Context, dir string, set []files.File) error {
	if dir == "" {
		return nil
	}
	data := map[string][]byte{}
	if have := s.have[dir]; have != nil {
		data = maps.Clone(have.Data)
	}
	for _, f := range set {
		data[f.Name] = f.Data
	}
	return s.write(ctx, dir, data)
}

// WriteFile writes one key of a Secret.
func (s *SecretStorage) WriteFile(ctx context.Context, name string, value []byte) error {
	dir, file := split(name)
	return s.WriteDir(ctx, dir, []files.File{{Name: file, Data: value}})
}

// write creates or replaces a Secret unless it changed since it was read.
func (s *SecretStorage) write(ctx context.Context, dir string, data map[string][]byte) error {
	c, name, known := s.secret(dir)
	if !known {
		return unnamed(dir)
	}
	next, err := c.Write(ctx, name, s.have[dir], data, false)
	if err != nil {
		return err
	}
	s.have[dir] = next
	return nil
}

// Rename renames the Secret of the rotation: it copies the Secret, then deletes it.
func (s *SecretStorage) Rename(ctx context.Context, from, to string) error {
	have := s.have[from]
	if have == nil {
		return fmt.Errorf("%s: %w", s.Place(from), fs.ErrNotExist)
	}
	c, name, _ := s.secret(to)
	left, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	// An earlier call may have copied it but failed to delete it.
	if left == nil || !maps.EqualFunc(left.Data, have.Data, slices.Equal) {
		if left != nil {
			s.have[to] = left
		}
		if err := s.write(ctx, to, have.Data); err != nil {
			return err
		}
	}
	if err := c.Delete(ctx, have); err != nil {
		return err
	}
	delete(s.have, from)
	return nil
}
