package publish

import (
	"context"
	"errors"
	"math"
	"reflect"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// elector acquires and renews a Lease as Kubernetes controllers do.
//
// It trusts no clock of another machine. An elector takes a Lease after it has seen no
// change of the record for the duration in the record; the holder stops before that by
// its own clock. Of two concurrent writes with the same resource version the API server
// accepts one.
type elector struct {
	api    leaseAPI
	now    func() time.Time
	holder string
	// duration goes into the record. The holder gives up after deadline without a
	// renewal. retry is the interval between requests.
	duration, deadline, retry time.Duration
	// observed gets the result of each request: the holder of the Lease, or an error.
	observed func(ctx context.Context, holder string, err error)

	lease   *coordinationv1.Lease // as last seen; nil before
	since   time.Time             // of the first sight of this record
	renewed time.Time             // start of the last successful write
}

// leaseAPI has the Leases of a namespace.
type leaseAPI interface {
	Get(ctx context.Context, name string) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

// errLost ends a term.
var errLost = errors.New("the Lease was lost")

// acquire blocks until the elector holds the Lease. It returns false if ctx ends
// before.
func (c *elector) acquire(ctx context.Context) bool {
	for ctx.Err() == nil {
		if held, err := c.within(ctx, c.deadline/2, c.take); held && err == nil {
			return true
		}
		pause(ctx, c.retry)
	}
	return false
}

// keep renews the Lease until ctx ends; then it returns nil. It returns errLost as soon
// as another replica holds the Lease or could hold it.
func (c *elector) keep(ctx context.Context) error {
	for {
		left := c.deadline - c.now().Sub(c.renewed)
		if left <= 0 {
			return errLost
		}
		pause(ctx, min(c.retry, left))
		if ctx.Err() != nil {
			return nil
		}
		// A request that hangs must leave time for another one.
		left = min(c.deadline-c.now().Sub(c.renewed), c.deadline/2)
		if held, err := c.within(ctx, left, c.renew); err == nil && !held {
			return errLost
		}
	}
}

// within bounds a request and reports its result to observed.
func (c *elector) within(ctx context.Context, d time.Duration, try func(context.Context) (bool, error)) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	held, err := try(bounded)
	switch {
	case err == nil:
		c.observed(ctx, c.currentHolder(), nil)
	case !isRace(err):
		c.observed(ctx, "", err)
	}
	return held, err
}

// isRace reports whether another replica was faster.
func isRace(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// take acquires the Lease if it is free, and reports whether the elector holds it. The
// last known holder of a deleted Lease may still rely on it, so a deleted Lease is not
// free at once.
func (c *elector) take(ctx context.Context) (bool, error) {
	found, err := c.api.Get(ctx, LeaseName)
	switch {
	case apierrors.IsNotFound(err):
		found = nil
	case err != nil:
		return false, err
	default:
		c.observe(found)
	}
	if holder := c.currentHolder(); holder != "" && holder != c.holder && c.now().Sub(c.since) < c.term() {
		return false, nil
	}
	err = c.write(ctx, found)
	return err == nil, err
}

// renew renews the Lease, and reports whether the elector still holds it.
func (c *elector) renew(ctx context.Context) (bool, error) {
	err := c.write(ctx, c.lease)
	if !isRace(err) && !apierrors.IsNotFound(err) {
		return err == nil, err
	}
	// Another replica wrote, or this one did and the response was lost.
	found, err := c.api.Get(ctx, LeaseName)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.observe(found)
	if c.currentHolder() != c.holder {
		return false, nil
	}
	err = c.write(ctx, found)
	return err == nil, err
}

// release gives up the Lease, so that no replica has to wait for its end. It works even
// if ctx has ended.
func (c *elector) release(ctx context.Context) {
	if c.currentHolder() != c.holder {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.retry)
	defer cancel()
	for {
		next := c.lease.DeepCopy()
		now := metav1.NewMicroTime(c.now())
		next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = new(""), new(int32(1))
		next.Spec.AcquireTime, next.Spec.RenewTime = &now, &now
		written, err := c.api.Update(ctx, next, metav1.UpdateOptions{})
		if err == nil {
			c.observe(written)
			return
		}
		if !isRace(err) {
			return // the Lease expires by itself
		}
		found, err := c.api.Get(ctx, LeaseName)
		if err != nil {
			return
		}
		if c.observe(found); c.currentHolder() != c.holder {
			return
		}
	}
}

// write makes the elector the holder of the found Lease, or creates the Lease.
func (c *elector) write(ctx context.Context, found *coordinationv1.Lease) error {
	began := c.now()
	now := metav1.NewMicroTime(began)
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: LeaseName}}
	if found != nil {
		next = found.DeepCopy() // with its resource version
	}
	spec := &next.Spec
	if found == nil || valueOf(spec.HolderIdentity) != c.holder {
		transitions := int32(0)
		if found != nil {
			transitions = valueOf(spec.LeaseTransitions) + 1
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &c.holder, &now, &transitions
	}
	spec.RenewTime = &now
	spec.LeaseDurationSeconds = new(int32(math.Ceil(c.duration.Seconds())))
	var err error
	if found == nil {
		next, err = c.api.Create(ctx, next, metav1.CreateOptions{})
	} else {
		next, err = c.api.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	c.observe(next)
	c.renewed = began
	return nil
}

// observe records the current Lease.
func (c *elector) observe(found *coordinationv1.Lease) {
	if c.lease == nil || !reflect.DeepEqual(c.lease.Spec, found.Spec) {
		c.since = c.now()
	}
	c.lease = found
}

// currentHolder returns the last known holder, empty if there is none.
func (c *elector) currentHolder() string {
	if c.lease == nil {
		return ""
	}
	return valueOf(c.lease.Spec.HolderIdentity)
}

// term returns how long the record must not change until the Lease is free.
func (c *elector) term() time.Duration {
	return time.Duration(valueOf(c.lease.Spec.LeaseDurationSeconds)) * time.Second
}

func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
