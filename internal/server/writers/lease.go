// Package writers does what the control plane writes to Kubernetes by itself.
// Of all replicas the one that holds a Lease writes.
package writers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

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
	Log  *slog.Logger
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
	elector, terms, err := l.elector()
	if err != nil {
		return fmt.Errorf("Lease %s/%s: %w", l.cfg.Namespace, LeaseName, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// What it has to say is in the status.
		quiet := kube.WithLog(ctx, slog.New(slog.DiscardHandler))
		for ctx.Err() == nil {
			elector.Run(quiet) // until it is lost
		}
		return nil
	})
	for {
		select {
		case <-ctx.Done():
			return g.Wait()
		case term := <-terms:
			if err := l.term(term, tasks); err != nil {
				g.Go(func() error { return err })
			}
		}
	}
}

// term runs the tasks from getting the Lease to losing it.
func (l *Lease) term(ctx context.Context, tasks []Task) error {
	l.hold(true)
	defer l.hold(false)
	g, running := errgroup.WithContext(ctx)
	for _, task := range tasks {
		g.Go(func() error { return task(running) })
	}
	if err := g.Wait(); err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
		return err
	}
	<-ctx.Done()
	return nil
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

// elector hands over the context of each term.
func (l *Lease) elector() (*leaderelection.LeaderElector, <-chan context.Context, error) {
	deadline := cmp.Or(l.cfg.RenewDeadline, 10*time.Second)
	access := rest.CopyConfig(l.cfg.Access)
	access.Timeout = deadline / 2 // a request that hangs leaves time for another
	client, err := coordinationclient.NewForConfig(access)
	if err != nil {
		return nil, nil, err
	}
	terms := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: LeaseName,
		Lock: told{&resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: l.cfg.Namespace, Name: LeaseName},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.cfg.Holder},
		}, l},
		LeaseDuration: cmp.Or(l.cfg.Duration, 15*time.Second), RenewDeadline: deadline, RetryPeriod: cmp.Or(l.cfg.RetryPeriod, 2*time.Second),
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) {
				select {
				case terms <- term:
				case <-term.Done():
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	return elector, terms, err
}

// told tells the Lease how it went with the API server.
type told struct {
	*resourcelock.LeaseLock
	to *Lease
}

// Get implements resourcelock.Interface.
func (t told) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := t.LeaseLock.Get(ctx)
	if err == nil {
		t.to.mu.Lock()
		t.to.holder = record.HolderIdentity
		t.to.mu.Unlock()
	}
	if !apierrors.IsNotFound(err) {
		t.to.note(ctx, err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (t told) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := t.LeaseLock.Create(ctx, record)
	t.to.put(ctx, record, err)
	return err
}

// Update implements resourcelock.Interface.
func (t told) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := t.LeaseLock.Update(ctx, record)
	t.to.put(ctx, record, err)
	return err
}

func (l *Lease) put(ctx context.Context, record resourcelock.LeaderElectionRecord, err error) {
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return // another one was faster
	}
	if err == nil {
		l.mu.Lock()
		l.holder = record.HolderIdentity
		l.mu.Unlock()
	}
	l.note(ctx, err)
}

// note keeps and logs why the Lease cannot be had.
func (l *Lease) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	l.mu.Lock()
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
