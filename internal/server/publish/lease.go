// Package publish writes to Kubernetes on behalf of the control plane: the ConfigMap
// with the roots of the mesh, into every namespace, renewed tokens of remote secrets, and
// the allocated addresses of ServiceEntries. Only the replica that holds the Lease writes
// these; each replica writes the roots to the webhook configurations of its revision.
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

// LeaseName is the name of the Lease in the system namespace.
const LeaseName = "meshctl-writer"

// LeaseConfig configures a Lease. All fields but the durations and Held are required.
type LeaseConfig struct {
	Access    *rest.Config // to the own cluster of the control plane
	Namespace string
	// Holder is the unique name of the replica.
	Holder string
	// Another replica may take the Lease after Duration without a renewal. The
	// holder gives up after RenewDeadline without a renewal. Requests are RetryPeriod
	// apart. The defaults are 15 s, 10 s and 2 s.
	Duration, RenewDeadline, RetryPeriod time.Duration
	// Held is called when this replica gets or loses the Lease. May be nil.
	Held func(bool)
	// Now must return times with a monotonic clock reading, as time.Now does.
	Now func() time.Time
	Log *slog.Logger
}

// Lease is the Lease that a replica must hold to write.
type Lease struct {
	cfg LeaseConfig

	mu      sync.Mutex // guards what follows
	holder  string
	held    bool
	problem error
}

// NewLease returns a Lease that is not held. Run acquires it.
func NewLease(cfg LeaseConfig) *Lease { return &Lease{cfg: cfg} }

// Task runs in the holder of the Lease until ctx ends. An error ends the whole control
// plane.
type Task func(ctx context.Context) error

// LeaseStatus reports the holder of the Lease.
type LeaseStatus struct {
	Held   bool   // by this replica
	Holder string `json:",omitempty"`
	// Problem is the reason why this replica can neither read nor acquire the Lease.
	Problem string `json:",omitempty"`
}

// Status returns the current status of the Lease.
func (l *Lease) Status() LeaseStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := LeaseStatus{Held: l.held, Holder: l.holder}
	if l.problem != nil {
		st.Problem = fmt.Sprintf("Lease %s/%s: %v", l.cfg.Namespace, LeaseName, l.problem)
	}
	return st
}

// Run acquires the Lease whenever possible, and runs the tasks while this replica holds
// it, until ctx ends.
func (l *Lease) Run(ctx context.Context, tasks ...Task) error {
	api, err := kube.NewClient(l.cfg.Access)
	if err != nil {
		return fmt.Errorf("Lease %s/%s: %w", l.cfg.Namespace, LeaseName, err)
	}
	return l.run(ctx, api.Leases(l.cfg.Namespace), tasks)
}

func (l *Lease) run(ctx context.Context, api leaseAPI, tasks []Task) error {
	c := &elector{
		api: api, now: l.cfg.Now, holder: l.cfg.Holder, observed: l.note,
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

// term runs the tasks until the Lease is lost.
func (l *Lease) term(ctx context.Context, c *elector, tasks []Task) error {
	l.hold(true)
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return c.keep(running) })
	for _, task := range tasks {
		g.Go(func() error { return task(running) })
	}
	err := g.Wait()
	l.hold(false)
	c.release(ctx) // all tasks have ended
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
	what := "this replica no longer writes to Kubernetes"
	if yes {
		what = "this replica writes to Kubernetes from now on"
	}
	l.cfg.Log.Info(what, "lease", l.cfg.Namespace+"/"+LeaseName, "holder", l.cfg.Holder) //nolint:sloglint // one of two constants
}

// note records the holder of the Lease, or the error that hides it. It logs an error
// once.
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
