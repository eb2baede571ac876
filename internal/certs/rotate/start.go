package rotate

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// StartOptions describe the new root and the duration of steps.
type StartOptions struct {
	// Root describes the new root. Zero values are copied from the old root. The new
	// signers of the clusters have the same algorithm and otherwise equal the old ones.
	Root                 certs.CASpec
	LeafTTL, Propagation time.Duration
}

// Start makes the new root and the new signers, and makes the clusters trust both
// roots. It makes and checks all files of later steps. After an interrupted start, it
// completes that one with its original options.
func (d *Dir) Start(ctx context.Context, o StartOptions) (after *State, err error) {
	return d.change(ctx, func(r *rotation) (*rotation, *State, error) {
		switch {
		case r == nil:
			if r, err = d.begin(ctx, o); err != nil {
				return nil, nil, err
			}
		case r.state.Phase != Trust || !r.state.pending():
			return nil, nil, refuse("see status", "a rotation is under way in %s already, in phase %q", d.place(), r.state.Phase)
		}
		return r, r.state.move(Trust), d.allow(ctx, r, Trust)
	})
}

// begin makes and keeps all files. It does not change the clusters yet.
func (d *Dir) begin(ctx context.Context, o StartOptions) (*rotation, error) {
	old, clusters, err := d.survey(o)
	if err != nil {
		return nil, err
	}
	spec, err := complete(o.Root, old)
	if err != nil {
		return nil, err
	}
	root, err := certs.NewRoot(spec, d.Now(), d.Rand)
	if err != nil {
		return nil, fmt.Errorf("make the new root: %w", err)
	}
	if err := distinguishable(root.Cert, old, clusters); err != nil {
		return nil, err
	}
	r := &rotation{root: root.Cert, clusters: clusters, state: &State{
		Version: stateVersion, Phase: Trust, From: Aborted,
		LeafTTL: Duration(o.LeafTTL), Propagation: Duration(o.Propagation),
		OldRoot: certs.Fingerprint(old), NewRoot: certs.Fingerprint(root.Cert),
	}}
	for _, c := range clusters {
		// RSA keys take so long that a person may interrupt.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		signer, err := d.newSigner(root, c, o.Root.Algorithm)
		if err != nil {
			return nil, err
		}
		if err := c.prepare(old, root.Cert, signer); err != nil {
			return nil, err
		}
		r.state.Clusters = append(r.state.Clusters, c.name)
	}
	if err := d.lintAll(r); err != nil {
		return nil, err
	}
	return r, d.keep(ctx, r, root, old)
}

// survey reads the old root and the clusters, and refuses what cannot be rotated.
func (d *Dir) survey(o StartOptions) (*x509.Certificate, []*cluster, error) {
	if o.LeafTTL <= 0 || o.LeafTTL > maxWait || o.Propagation < 0 || o.Propagation > maxWait {
		return nil, nil, fmt.Errorf("life time of leaves is %v and propagation %v, want more than 0 and at most %v", o.LeafTTL, o.Propagation, maxWait)
	}
	root, err := parseOne(d.storage(), d.path(store.RootCertFile))
	if err != nil {
		return nil, nil, fmt.Errorf("the root to replace: %w", err)
	}
	names, err := d.storage().Clusters(d.Path)
	if err != nil {
		return nil, nil, err
	}
	if len(names) == 0 {
		return nil, nil, refuse("make them with certs intermediate-ca", "%s has no directory of a cluster with %s", d.place(), store.CertFile)
	}
	var clusters []*cluster
	for _, name := range names {
		c := &cluster{name: name, layout: layoutAt(d.storage(), d.path(string(name)), "")}
		dir, place := d.path(string(name)), d.place(string(name))
		if !mesh.IsDNSLabel(string(name)) {
			return nil, nil, refuse("rename it", "%s: the name of a cluster has to be a DNS label", place)
		}
		if c.authority, err = d.authority(dir); err != nil {
			return nil, nil, err
		}
		if c.old, err = readSet(d.storage(), dir, ""); err != nil {
			return nil, nil, err
		}
		if err := lint(d.storage(), dir, c.old, verify.Options{Now: d.Now()}); err != nil {
			return nil, nil, refuse("", "%s is not fit to be rotated: %v", place, err)
		}
		if err := c.leadsTo(root, d.Now()); err != nil {
			return nil, nil, err
		}
		clusters = append(clusters, c)
	}
	return root, clusters, nil
}

func (d *Dir) authority(dir string) (*certs.Authority, error) {
	m, err := d.storage().Material(dir)
	if err != nil {
		return nil, err
	}
	a, _, err := m.Authority(verify.Options{Now: d.Now()})
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	return a, nil
}

// maxWait bounds the times of a rotation. No leaf lives as long.
const maxWait = 10 * 365 * 24 * time.Hour

// lintAll checks the files of all steps. The present revocation lists count only for
// the first step.
func (d *Dir) lintAll(r *rotation) error {
	if err := d.fits(r, Trust); err != nil {
		return err
	}
	for _, c := range r.clusters {
		for _, p := range []Phase{Sign, Finished} {
			if err := lint(d.storage(), d.path(keepDir, string(c.name)), c.set(p), verify.Options{Now: d.Now()}); err != nil {
				return refuse("", "what the step %q would write for %s cannot be used: %v", p, c.name, err)
			}
		}
	}
	return nil
}

// keep writes the complete directory of the rotation.
func (d *Dir) keep(ctx context.Context, r *rotation, root *certs.Authority, old *x509.Certificate) error {
	set, err := store.RootFiles(root)
	if err != nil {
		return err
	}
	state, err := r.state.encode()
	if err != nil {
		return err
	}
	set = append(set,
		files.File{Name: stateFile, Data: state, Mode: files.Secret},
		files.File{Name: oldRoot + store.RootCertFile, Data: certs.EncodeCerts(old), Mode: files.Public})
	for _, c := range r.clusters {
		set = append(set, c.keep()...)
	}
	if err := d.storage().WriteDir(ctx, d.path(keepDir), set); err != nil {
		return fmt.Errorf("keep the rotation: %w", err)
	}
	d.wrote(d.path(keepDir))
	return nil
}
