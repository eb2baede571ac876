package multicluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// Member is one of the linked clusters.
type Member struct {
	*Cluster
	// Request makes its remote secret.
	Request  *Request
	prepared *Prepared
}

// Link writes the remote secret of each cluster into all others. It writes nothing
// unless the caller may write all of them. It keeps valid credentials. If it replaces
// one, it ends the account's earlier tokens that meshctl made, unless other clusters may
// use them.
func Link(ctx context.Context, members []*Member, say func(format string, args ...any)) error {
	if err := distinct(ctx, members); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, m := range members {
		group.Go(func() (err error) { m.prepared, err = m.Prepare(groupCtx, m.Request); return err })
		group.Go(func() error { return m.Require(groupCtx, create.RightsToWrite(m.Request.Account.Namespace)) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, m := range members {
		for _, w := range m.prepared.Warnings {
			say("Warning: %s: %s", m.Name, w)
		}
	}
	// First make all accounts and their namespaces, where the secrets of other
	// clusters go.
	made := make([]*Made, len(members))
	for i, m := range members {
		wanted, err := m.wanted(ctx, members)
		if err != nil {
			return err
		}
		if !wanted && m.Request.TTL > 0 {
			continue
		}
		if made[i], err = m.prepared.Make(ctx); err != nil {
			return err
		}
		for _, lacking := range made[i].Lacking() {
			say("Warning: %s: %s", m.Name, lacking)
		}
	}
	replaced := make([][]*remotesecret.Cluster, len(members))
	step, steps := 0, len(members)*(len(members)-1)
	for i, from := range members {
		for _, to := range members {
			if to == from {
				continue
			}
			step++
			said := "wrote secret"
			if made[i] == nil {
				said = "unchanged secret"
			} else {
				old, err := replace(ctx, to, made[i])
				if err != nil {
					return err
				}
				replaced[i] = append(replaced[i], old...)
			}
			say("[%d/%d] %s of cluster %s in %s", step, steps, said, from.prepared.ID, to.Name)
		}
	}
	// The clusters are linked, so further failures are warnings.
	for i, m := range members {
		if len(replaced[i]) == 0 {
			continue
		}
		unknown, err := strangers(ctx, members)
		if err == nil {
			_, err = m.endEarlier(ctx, []string{made[i].IssuedToken.Secret}, replaced[i], unknown, say)
		}
		if err != nil {
			say("Warning: %s: earlier tokens of service account %s may still work: %v", m.Name, m.Request.Account, err)
		}
	}
	return nil
}

// replace writes a remote secret and returns its earlier clusters with other
// credentials.
func replace(ctx context.Context, to *Member, made *Made) ([]*remotesecret.Cluster, error) {
	old, err := to.Secret(ctx, made.Secret.Namespace, made.Secret.Name)
	if err != nil {
		return nil, err
	}
	if err := to.Apply(ctx, made.Secret); err != nil || old == nil {
		return nil, err
	}
	return slices.DeleteFunc(decode(old), func(c *remotesecret.Cluster) bool {
		return c.CredentialHash() == remotesecret.HashToken(made.Token)
	}), nil
}

func decode(secret *corev1.Secret) []*remotesecret.Cluster {
	var out []*remotesecret.Cluster
	for _, c := range remotesecret.Decode(secret) {
		if c.Err == nil {
			out = append(out, &c)
		}
	}
	return out
}

// wanted reports whether another member lacks a valid secret of m.
func (m *Member) wanted(ctx context.Context, members []*Member) (bool, error) {
	for _, to := range members {
		if to == m {
			continue
		}
		secret, err := to.Secret(ctx, m.Request.Account.Namespace, remotesecret.Name(m.prepared.ID))
		if err != nil {
			return false, err
		}
		if secret == nil {
			return true, nil
		}
		c, err := clusterOf(secret, m.prepared.ID)
		if err != nil || c.Server.Server != m.prepared.Server || !c.Renewed || worn(c, m.Request.Now) {
			return true, nil //nolint:nilerr // replace an unreadable secret
		}
	}
	return false, nil
}

// worn reports whether the kubeconfig is invalid or expires soon.
func worn(c *remotesecret.Cluster, now time.Time) bool {
	return slices.ContainsFunc(remotesecret.Check(c, remotesecret.Options{Now: now}), func(f remotesecret.Finding) bool {
		return f.Severity != remotesecret.Warning || f.Code == remotesecret.TokenExpiresSoon
	})
}

// distinct refuses repeated clusters and ids.
func distinct(ctx context.Context, members []*Member) error {
	uids := map[string]string{}
	ids := map[mesh.ClusterID]string{}
	for _, m := range members {
		uid, err := m.UID(ctx)
		if err != nil {
			return err
		}
		if other := uids[uid]; other != "" {
			return fmt.Errorf("%s and %s are the same cluster", other, m.Name)
		}
		if other := ids[m.Request.Cluster]; other != "" {
			return fmt.Errorf("%s and %s would both be cluster %s", other, m.Name, m.Request.Cluster)
		}
		uids[uid], ids[m.Request.Cluster] = m.Name, m.Name
	}
	return nil
}

// Unlink deletes the remote secrets of the clusters in each other, and ends the tokens
// that meshctl made, unless other clusters may use them. It returns the number of
// deleted Secrets.
func Unlink(ctx context.Context, members []*Member, say func(format string, args ...any)) (int, error) {
	unknown, err := strangers(ctx, members)
	if err != nil {
		return 0, err
	}
	var errs []error
	had := make([][]*remotesecret.Cluster, len(members))
	deleted, step, steps := 0, 0, len(members)*(len(members)-1)
	for i, from := range members {
		id, namespace := from.Request.Cluster, from.Request.Account.Namespace
		for _, in := range members {
			if in == from {
				continue
			}
			step++
			was, err := in.DeleteRemote(ctx, namespace, id)
			switch {
			case err != nil:
				errs = append(errs, err)
			case was == nil:
				say("[%d/%d] no secret of cluster %s in %s", step, steps, id, in.Name)
			default:
				deleted++
				had[i] = append(had[i], decode(was)...)
				say("[%d/%d] deleted secret of cluster %s in %s", step, steps, id, in.Name)
			}
		}
	}
	if len(errs) > 0 {
		return deleted, errors.Join(errs...) // remaining secrets still need their tokens
	}
	for i, m := range members {
		ended, err := m.endEarlier(ctx, nil, had[i], unknown, say)
		if err != nil {
			errs = append(errs, fmt.Errorf("tokens of service account %s may still work: %w", m.Request.Account, err))
		}
		deleted += ended
	}
	return deleted, errors.Join(errs...)
}

// DeleteRemote deletes the remote secret of a cluster and the copy that an unfinished
// rotation keeps. It returns the Secret, or nil if there was none.
func (c *Cluster) DeleteRemote(ctx context.Context, namespace string, id mesh.ClusterID) (*corev1.Secret, error) {
	secret, err := c.Secret(ctx, namespace, remotesecret.Name(id))
	if err != nil {
		return nil, err
	}
	copied, err := c.previous(ctx, namespace, id)
	if err != nil {
		return nil, err
	}
	for _, s := range []*corev1.Secret{secret, copied} {
		if s == nil {
			continue
		}
		if err := c.DeleteSecret(ctx, namespace, s.Name); err != nil {
			return nil, err
		}
	}
	return secret, nil
}
