// Package publish does what the control plane writes to Kubernetes by itself.
// Of all replicas the one that holds a Lease writes.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
)

// LeaseName is that of the Lease in the system namespace.
const LeaseName = "meshctl-writer"

// LeaseConfig says which Lease a replica wants to hold. All but the times and
// Held are required.
type LeaseConfig struct {
	Access    *rest.Config // to the control plane's own cluster
	Namespace string
	// Holder is the replica, by a name that no other one has.
	Holder string
	// A Lease that was not renewed for Duration may be taken; the holder gives
	// up after RenewDeadline without success. Who does not hold it tries again
	// every RetryPeriod. Defaults are 15 s, 10 s and 2 s.
	Duration, RenewDeadline, RetryPeriod time.Duration
	// Held is told when it is held and when not. May be nil.
	Held func(bool)
	// Now must have a monotonic reading, as that of time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Lease is what a replica holds while it writes.
type Lease struct {
	cfg LeaseConfig

	mu      sync.Mutex // guards what follows
	holder  string
	held    bool
	problem error
}

// NewLease returns a Lease that is not held.
func NewLease(cfg LeaseConfig) *Lease { return &Lease{cfg: cfg} }

// Task is what the holder of the Lease does until ctx ends. An error ends the
// whole control plane.
type Task func(ctx context.Context) error

// LeaseStatus says who writes.
type LeaseStatus struct {
	Held   bool   // by this replica
	Holder string `json:",omitempty"`
	// Problem is why this replica can neither get nor look at it.
	Problem string `json:",omitempty"`
}

// Status is that of the Lease now.
func (l *Lease) Status() LeaseStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := LeaseStatus{Held: l.held, Holder: l.holder}
	if l.problem != nil {
		st.Problem = fmt.Sprintf("Lease %s/%s: %v", l.cfg.Namespace, LeaseName, l.problem)
	}
	return st
}

// Run holds the Lease whenever it can, until ctx ends, and runs the tasks while
// it does.
func (l *Lease) Run(ctx context.Context, tasks ...Task) error {
	api, err := kube.NewClient(l.cfg.Access)
	if err != nil {
		return fmt.Errorf("Lease %s/%s: %w", l.cfg.Namespace, LeaseName, err)
	}
	return l.run(ctx, api.Leases(l.cfg.Namespace), tasks)
}

func (l *Lease) run(ctx context.Context, api leases, tasks []Task) error {
	c := &candidate{
		api: api, now: l.cfg.Now, holder: l.cfg.Holder, tell: l.note,
		duration: cmp.Or(l.cfg.Duration, 15*time.Second),
		deadline: cmp.Or(l.cfg.RenewDeadline, 10*time.Second),
		retry:    cmp.Or(l.cfg.RetryPeriod, 2*time.Second),
	}
	for c.acquire(ctx) {
		if err := l.term(ctx, c, tasks); err != nil {
			return err
		}
	}
	return nil
}

// term runs the tasks from getting the Lease to losing it.
func (l *Lease) term(ctx context.Context, c *candidate, tasks []Task) error {
	l.hold(true)
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return c.keep(running) })
	for _, task := range tasks {
		g.Go(func() error { return task(running) })
	}
	err := g.Wait()
	l.hold(false)
	c.release(ctx) // nobody writes any more
	if errors.Is(err, errLost) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func (l *Lease) hold(yes bool) {
	l.mu.Lock()
	l.held = yes
	l.mu.Unlock()
	if l.cfg.Held != nil {
		l.cfg.Held(yes)
	}
	what := "this replica writes to Kubernetes no longer"
	if yes {
		what = "this replica writes to Kubernetes from now on"
	}
	l.cfg.Log.Info(what, "lease", l.cfg.Namespace+"/"+LeaseName, "holder", l.cfg.Holder) //nolint:sloglint // one of two constants
}

// note keeps who holds the Lease, if that is known, and why it cannot be had,
// which it logs once.
func (l *Lease) note(ctx context.Context, holder string, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	if err == nil {
		l.holder = holder
	}
	before := l.problem
	l.problem = err
	l.mu.Unlock()
	lease := l.cfg.Namespace + "/" + LeaseName
	switch {
	case err != nil && before == nil:
		l.cfg.Log.Warn("this replica cannot write to Kubernetes without the Lease, trying again", "lease", lease, "error", err,
			"fix", "grant get, create and update on leases.coordination.k8s.io in the system namespace")
	case err == nil && before != nil:
		l.cfg.Log.Info("this replica can get the Lease again", "lease", lease)
	}
}
