package multicluster

import (
	"context"
	"errors"

	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// CheckTargets returns an error that says which of the clusters the secret
// cannot be written into, and why.
func (p *Prepared) CheckTargets(ctx context.Context, targets []*Cluster) error {
	if len(targets) == 0 {
		return nil
	}
	uid, err := p.cluster.UID(ctx)
	if err != nil {
		return err
	}
	secret, err := p.build(&create.IssuedToken{Token: "-"})
	if err != nil {
		return err
	}
	var errs []error
	for _, target := range targets {
		errs = append(errs, target.CheckTarget(ctx, secret, uid))
	}
	return errors.Join(errs...)
}
