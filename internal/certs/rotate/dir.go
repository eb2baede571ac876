package rotate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Names in the directory of the certificates.
const (
	keepDir   = ".rotation" // the state and all files of later steps
	lockFile  = ".rotation.lock"
	stateFile = "state.json"
	oldRoot   = "old-" // prefix of the old root's files
)

// Dir is a directory with a root and a directory for each cluster, as certs root-ca
// and certs intermediate-ca make them, or an equivalent Storage.
type Dir struct {
	Path string
	Now  func() time.Time
	Rand io.Reader // serial numbers
	// Gates must allow each step that has a requirement.
	Gates []Gate
	// Wrote, if set, is called for every written directory.
	Wrote func(path string)
	// Storage holds the files; nil is the file system.
	Storage Storage
}

func (d *Dir) storage() Storage {
	if d.Storage != nil {
		return d.Storage
	}
	return fileSystem{}
}

func (d *Dir) path(parts ...string) string {
	return filepath.Join(append([]string{d.Path}, parts...)...)
}

// place returns the name of a path for people.
func (d *Dir) place(parts ...string) string { return d.storage().Place(d.path(parts...)) }

// wrote calls Wrote.
func (d *Dir) wrote(path string) {
	if d.Wrote != nil {
		d.Wrote(d.storage().Place(path))
	}
}

// rotation is the content of the rotation's directory.
type rotation struct {
	state    *State
	clusters []*cluster
	root     *x509.Certificate // the new root
}

// open reads the running rotation. It returns nil if there is none.
func (d *Dir) open() (*rotation, error) {
	if err := d.storage().Stat(d.Path); err != nil {
		return nil, fmt.Errorf("directory of the certificates: %w", err)
	}
	if err := d.storage().Stat(d.path(keepDir)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &rotation{}
	if err := d.readInto(r); err != nil {
		return nil, fmt.Errorf("state of the rotation: %w", err)
	}
	return r, nil
}

func (d *Dir) readInto(r *rotation) error {
	data, err := d.storage().Read(d.path(keepDir, stateFile))
	if err != nil {
		return err
	}
	if r.state, err = decode(data); err != nil {
		return fmt.Errorf("%s: %w", d.place(keepDir, stateFile), err)
	}
	if r.root, err = parseOne(d.storage(), d.path(keepDir, store.RootCertFile)); err != nil {
		return err
	}
	if certs.Fingerprint(r.root) != r.state.NewRoot {
		return fmt.Errorf("the root in %s is not the root in %s", d.place(keepDir, store.RootCertFile), d.place(keepDir, stateFile))
	}
	for _, name := range r.state.Clusters {
		c, err := load(d.storage(), d.path(keepDir), name)
		if err != nil {
			return err
		}
		r.clusters = append(r.clusters, c)
	}
	return nil
}

// Authorities returns the CAs of the running rotation: the new root, and the old and
// new signers of all clusters. It returns none if no rotation is running.
func (d *Dir) Authorities() ([]*certs.Authority, error) {
	r, err := d.open()
	if err != nil || r == nil {
		return nil, err
	}
	newRoot, err := d.keptRoot()
	if err != nil {
		return nil, fmt.Errorf("state of the rotation: %w", err)
	}
	cert, key := newRoot[0].Data, newRoot[1].Data
	root, err := certs.LoadAuthority(certs.PEMs{Cert: cert, Key: key, Roots: cert}, d.Now())
	if err != nil {
		return nil, fmt.Errorf("state of the rotation: %s: %w", d.place(keepDir), err)
	}
	out := []*certs.Authority{root}
	for _, c := range r.clusters {
		for _, set := range [][]files.File{c.old, c.set(Finished)} {
			a, err := store.FromFiles(d.place(keepDir), set).Signer(verify.Options{Now: d.Now()})
			if err != nil {
				return nil, fmt.Errorf("state of the rotation: %w", err)
			}
			out = append(out, a)
		}
	}
	return out, nil
}

// keptRoot reads the files of the new root from the directory of the rotation.
func (d *Dir) keptRoot() ([]files.File, error) {
	cert, err1 := d.storage().Read(d.path(keepDir, store.RootCertFile))
	key, err2 := d.storage().ReadSecret(d.path(keepDir, store.RootKeyFile))
	return []files.File{
		{Name: store.RootCertFile, Data: cert, Mode: files.Public},
		{Name: store.RootKeyFile, Data: key, Mode: files.Secret},
	}, errors.Join(err1, err2)
}

// change writes the next state of a rotation while it holds the lock of the directory.
// next gets the running rotation, nil if there is none.
func (d *Dir) change(ctx context.Context, next func(*rotation) (*rotation, *State, error)) (after *State, err error) {
	if err := d.storage().Stat(d.Path); err != nil {
		return nil, fmt.Errorf("directory of the certificates: %w", err)
	}
	unlock, err := d.storage().Lock(d.path(lockFile))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	r, err := d.open()
	if err != nil {
		return nil, err
	}
	r, state, err := next(r)
	if err != nil {
		return nil, err
	}
	return d.write(ctx, r, state)
}

// changeRunning is change, but fails without a rotation.
func (d *Dir) changeRunning(ctx context.Context, next func(*rotation) (*State, error)) (*State, error) {
	return d.change(ctx, func(r *rotation) (*rotation, *State, error) {
		if r == nil {
			return nil, nil, refuse("begin one with start", "no rotation is under way in %s", d.place())
		}
		state, err := next(r)
		return r, state, err
	})
}

// Take takes the step of the action, if it is safe, and returns the new state. After an
// interrupted step, it only completes that step.
func (d *Dir) Take(ctx context.Context, a Action) (after *State, err error) {
	return d.changeRunning(ctx, func(r *rotation) (*State, error) {
		to, err := decide(r.state, a)
		if err != nil {
			return nil, err
		}
		return r.state.move(to), d.allow(ctx, r, to)
	})
}

// Restore writes the files of the current step into all clusters, whatever they hold.
// The waiting time begins again. An interrupted last step is undone.
func (d *Dir) Restore(ctx context.Context) (after *State, err error) {
	return d.changeRunning(ctx, func(r *rotation) (*State, error) {
		to := r.state.Phase
		switch to {
		case Finished:
			to = Sign
		case Aborted:
			to = Back
		case Trust, Sign, Back:
		}
		state := r.state.move(to)
		state.Restored = true
		return state, d.fits(r, to)
	})
}

// allow refuses a step that could break handshakes.
func (d *Dir) allow(ctx context.Context, r *rotation, to Phase) error {
	unknown, err := d.unknown(r.state)
	if err != nil {
		return err
	}
	if len(unknown) > 0 && (to == Sign || to == Finished) {
		return refuse("take it out of the directory until the rotation has ended, then make its CA again",
			"%s is not part of the rotation: its proxies do not trust the new root", d.place(string(unknown[0])))
	}
	for _, c := range r.clusters {
		if s := d.clusterStatus(r.state, c); !s.fine() {
			return refuse("put back what was there, or have it written again with next --force",
				"%s: %s", d.place(string(c.name)), s.explain())
		}
	}
	if err := d.fits(r, to); err != nil {
		return err
	}
	if requirement := r.requirement(to); requirement != nil {
		for _, gate := range d.Gates {
			if err := gate(ctx, *requirement); err != nil {
				return err
			}
		}
	}
	return nil
}

// fits refuses a phase whose files a control plane would refuse.
func (d *Dir) fits(r *rotation, to Phase) error {
	for _, c := range r.clusters {
		if err := lint(d.storage(), d.path(string(c.name)), c.set(to), verify.Options{Now: d.Now()}, c.all()...); err != nil {
			return refuse("", "what would be written for %s cannot be used: %v", c.name, err)
		}
	}
	return nil
}

// write writes the phase of the state into all directories. It saves the state before
// as pending, and afterwards as written.
func (d *Dir) write(ctx context.Context, r *rotation, state *State) (*State, error) {
	if err := d.save(ctx, state); err != nil {
		return nil, err
	}
	for _, c := range r.clusters {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("interrupted between two clusters; the same command goes on: %w", err)
		}
		want, dir := c.set(state.Phase), d.path(string(c.name))
		if have, err := readSet(d.storage(), dir, ""); err == nil && equalSets(have, want) {
			continue
		}
		if err := d.storage().WriteDir(ctx, dir, want); err != nil {
			return nil, err
		}
		d.wrote(dir)
	}
	if state.Phase == Finished {
		if err := d.replaceRoot(ctx, r); err != nil {
			return nil, err
		}
	}
	state = state.settle(d.Now())
	if state.Phase.Ends() {
		return state, d.archive(ctx, r, state)
	}
	return state, d.save(ctx, state)
}

func (d *Dir) save(ctx context.Context, s *State) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	return d.storage().WriteFile(ctx, d.path(keepDir, stateFile), data)
}

// replaceRoot replaces the root of the directory. It keeps the old root, and its key
// if present, with the rotation.
func (d *Dir) replaceRoot(ctx context.Context, r *rotation) error {
	have, err := parseOne(d.storage(), d.path(store.RootCertFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if have != nil && have.Equal(r.root) {
		return nil
	}
	key, err := d.storage().ReadSecret(d.path(store.RootKeyFile))
	switch {
	case err == nil:
		if err := d.storage().WriteFile(ctx, d.path(keepDir, oldRoot+store.RootKeyFile), key); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	set, err := d.keptRoot()
	if err != nil {
		return err
	}
	if err := d.storage().WriteDir(ctx, d.Path, set); err != nil {
		return err
	}
	d.wrote(d.path(store.RootCertFile))
	d.wrote(d.path(store.RootKeyFile))
	return nil
}

// Archive returns the place of an ended rotation's files.
func (d *Dir) Archive(s *State) string { return d.storage().Place(d.archivePath(s)) }

func (d *Dir) archivePath(s *State) string {
	root := strings.ToLower(strings.ReplaceAll(s.NewRoot, ":", ""))
	return d.path(fmt.Sprintf(".%s-%s-%s", s.Phase, s.Written.UTC().Format("20060102"), root[:8]))
}

// archive ends a rotation by renaming its directory.
func (d *Dir) archive(ctx context.Context, r *rotation, state *State) error {
	if err := d.storage().Rename(ctx, d.path(keepDir), d.archivePath(state)); err != nil {
		return fmt.Errorf("archive the rotation to %s: %w", r.root.Subject, err)
	}
	return nil
}

// unknown returns the directories of clusters that are no part of the rotation.
func (d *Dir) unknown(s *State) ([]mesh.ClusterID, error) {
	names, err := d.storage().Clusters(d.Path)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(n mesh.ClusterID) bool { return slices.Contains(s.Clusters, n) }), nil
}
