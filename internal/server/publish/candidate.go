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

// candidate gets and keeps a Lease as the controllers of Kubernetes do, so that
// their tools can read it.
//
// No clock of another machine is trusted. A Lease may be taken from its holder
// when its record was seen not to change for as long as the record says, and its
// holder stops before that by its own clock. Two who write at once do so with a
// resource version, which the API server lets one of them have.
type candidate struct {
	api    leases
	now    func() time.Time
	holder string
	// duration is what the record says, deadline how long the holder goes on
	// without having renewed it, retry between two tries.
	duration, deadline, retry time.Duration
	// tell is told of each answer of the API server: who holds the Lease, or why
	// that cannot be known or changed.
	tell func(ctx context.Context, holder string, err error)

	lease   *coordinationv1.Lease // as it was seen last; nil before
	since   time.Time             // when this record was first seen
	renewed time.Time             // before the write that made or kept it ours
}

// leases are the Leases of a namespace.
type leases interface {
	Get(ctx context.Context, name string) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

// errLost is why a term ends.
var errLost = errors.New("the Lease was lost")

// acquire tries until the candidate holds the Lease. It returns false when ctx
// ended before.
func (c *candidate) acquire(ctx context.Context) bool {
	for ctx.Err() == nil {
		if held, err := c.within(ctx, c.deadline/2, c.take); held && err == nil {
			return true
		}
		pause(ctx, c.retry)
	}
	return false
}

// keep renews the Lease until ctx ends, when it returns nil. It returns errLost
// as soon as another one has it, or could have it.
func (c *candidate) keep(ctx context.Context) error {
	for {
		left := c.deadline - c.now().Sub(c.renewed)
		if left <= 0 {
			return errLost
		}
		pause(ctx, min(c.retry, left))
		if ctx.Err() != nil {
			return nil
		}
		// A request that hangs leaves time for another one.
		left = min(c.deadline-c.now().Sub(c.renewed), c.deadline/2)
		if held, err := c.within(ctx, left, c.renew); err == nil && !held {
			return errLost
		}
	}
}

// within bounds a try and tells how it went.
func (c *candidate) within(ctx context.Context, d time.Duration, try func(context.Context) (bool, error)) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	held, err := try(bounded)
	switch {
	case err == nil:
		c.tell(ctx, c.seen(), nil)
	case !isRace(err):
		c.tell(ctx, "", err)
	}
	return held, err
}

// isRace reports whether another one was faster.
func isRace(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// take gets the Lease if nobody has it. It reports whether the candidate does.
// A Lease that somebody deleted may still be relied on by its holder.
func (c *candidate) take(ctx context.Context) (bool, error) {
	found, err := c.api.Get(ctx, LeaseName)
	switch {
	case apierrors.IsNotFound(err):
		found = nil
	case err != nil:
		return false, err
	default:
		c.observe(found)
	}
	if holder := c.seen(); holder != "" && holder != c.holder && c.now().Sub(c.since) < c.term() {
		return false, nil
	}
	err = c.write(ctx, found)
	return err == nil, err
}

// renew writes that the Lease is still held. It reports whether it is.
func (c *candidate) renew(ctx context.Context) (bool, error) {
	err := c.write(ctx, c.lease)
	if !isRace(err) && !apierrors.IsNotFound(err) {
		return err == nil, err
	}
	// Somebody wrote, maybe this one: a write may be done whose answer is lost.
	found, err := c.api.Get(ctx, LeaseName)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.observe(found)
	if c.seen() != c.holder {
		return false, nil
	}
	err = c.write(ctx, found)
	return err == nil, err
}

// release gives the Lease back, so that nobody has to wait for its end. It does
// so also when ctx has ended.
func (c *candidate) release(ctx context.Context) {
	if c.seen() != c.holder {
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
			return // it ends by itself
		}
		found, err := c.api.Get(ctx, LeaseName)
		if err != nil {
			return
		}
		if c.observe(found); c.seen() != c.holder {
			return
		}
	}
}

// write makes the Lease that was found the candidate's, or creates it.
func (c *candidate) write(ctx context.Context, found *coordinationv1.Lease) error {
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

// observe takes note of the Lease as it is.
func (c *candidate) observe(found *coordinationv1.Lease) {
	if c.lease == nil || !reflect.DeepEqual(c.lease.Spec, found.Spec) {
		c.since = c.now()
	}
	c.lease = found
}

// seen is who held the Lease when it was seen last, empty if nobody did.
func (c *candidate) seen() string {
	if c.lease == nil {
		return ""
	}
	return valueOf(c.lease.Spec.HolderIdentity)
}

// term is how long the record must not change for the Lease to be free.
func (c *candidate) term() time.Duration {
	return time.Duration(valueOf(c.lease.Spec.LeaseDurationSeconds)) * time.Second
}

func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// pause waits, no longer than ctx lasts.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
