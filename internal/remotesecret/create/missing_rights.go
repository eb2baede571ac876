package create

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/meshctl/meshctl/internal/token"
)

// Right is a kind of request that an API server allows or denies.
type Right struct {
	// Resource may be a subresource, such as serviceaccounts/token.
	Verb, Group, Resource string
	// Namespace is empty for all namespaces and for cluster-scoped resources.
	Namespace, Name string
	// Without describes the effect of a missing right.
	Without string
}

// String returns text such as "create secrets in istio-system".
func (r Right) String() string {
	s := r.Verb + " " + r.Resource
	if r.Group != "" {
		s += "." + r.Group
	}
	if r.Name != "" {
		s += " " + r.Name
	}
	if r.Namespace != "" {
		s += " in " + r.Namespace
	}
	return s
}

// withVerbs returns the right with each of the verbs.
func (r Right) withVerbs(verbs ...string) []Right {
	out := make([]Right, len(verbs))
	for i, verb := range verbs {
		out[i] = r
		out[i].Verb = verb
	}
	return out
}

// reviewsAtOnce bounds the concurrent access reviews at one API server.
const reviewsAtOnce = 8

// Missing returns the rights that the caller lacks.
func (c *APIServer) Missing(ctx context.Context, rights []Right) ([]Right, error) {
	return c.review(ctx, rights, func(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
		review, err := c.api.ReviewOwnAccess(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a},
		})
		return review.Status.Allowed, err
	})
}

func (c *APIServer) missingOf(ctx context.Context, account Account, rights []Right) ([]Right, error) {
	const all = "system:serviceaccounts"
	return c.review(ctx, rights, func(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
		review, err := c.api.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				ResourceAttributes: a,
				User:               token.Subject(account.Namespace, account.Name),
				Groups:             []string{all, all + ":" + account.Namespace, "system:authenticated"},
			},
		})
		return review.Status.Allowed, err
	})
}

// review calls ask for each right and returns the denied ones.
func (c *APIServer) review(ctx context.Context, rights []Right,
	ask func(context.Context, *authorizationv1.ResourceAttributes) (bool, error),
) ([]Right, error) {
	allowed := make([]bool, len(rights))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(reviewsAtOnce)
	for i, r := range rights {
		group.Go(func() error {
			resource, subresource, _ := strings.Cut(r.Resource, "/")
			ok, err := ask(ctx, &authorizationv1.ResourceAttributes{
				Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: subresource, Namespace: r.Namespace, Name: r.Name,
			})
			if err != nil {
				return c.failed(err, "review the right to %s", r)
			}
			allowed[i] = ok
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var missing []Right
	for i, r := range rights {
		if !allowed[i] {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// Require fails if the caller lacks any of the rights.
func (c *APIServer) Require(ctx context.Context, rights []Right) error {
	missing, err := c.Missing(ctx, rights)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range missing {
		errs = append(errs, fmt.Errorf("%s: %s may not %s; without it, %s", c.Name, c.caller(), r, r.Without))
	}
	if len(errs) > 0 {
		errs = append(errs, fmt.Errorf("%s: %s", c.Name, c.grant()))
	}
	return errors.Join(errs...)
}
