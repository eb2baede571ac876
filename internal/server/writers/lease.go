// Package writers does what the control plane writes to Kubernetes by itself.
// Of all replicas the one that holds a Lease writes.
package writers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaseName is that of the Lease in the system namespace.
const LeaseName = "meshctl-writer"

// Lease says which Lease a replica wants to hold. All but the times and Held
// are required.
type Lease struct {
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

// Task is what the holder of the Lease does until ctx ends. An error ends the
// whole control plane.
type Task func(ctx context.Context) error

// Run holds the Lease whenever it can, until ctx ends, and runs the tasks while
// it does.
func (l Lease) Run(ctx context.Context, tasks ...Task) error {
	elector, terms, err := l.elector()
	if err != nil {
		return fmt.Errorf("lease %s/%s: %w", l.Namespace, LeaseName, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for ctx.Err() == nil {
			elector.Run(ctx) // until it is lost
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
func (l Lease) term(ctx context.Context, tasks []Task) error {
	l.Log.Info("this replica writes from now on", "lease", l.Namespace+"/"+LeaseName, "holder", l.Holder)
	l.held(true)
	defer l.held(false)
	g, running := errgroup.WithContext(ctx)
	for _, task := range tasks {
		g.Go(func() error { return task(running) })
	}
	err := g.Wait()
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	<-ctx.Done()
	l.Log.Info("this replica writes no longer", "lease", l.Namespace+"/"+LeaseName, "holder", l.Holder)
	return err
}

func (l Lease) held(yes bool) {
	if l.Held != nil {
		l.Held(yes)
	}
}

// elector hands over the context of each term.
func (l Lease) elector() (*leaderelection.LeaderElector, <-chan context.Context, error) {
	deadline := cmp.Or(l.RenewDeadline, 10*time.Second)
	access := rest.CopyConfig(l.Access)
	access.Timeout = deadline / 2 // a request that hangs leaves time for another
	client, err := coordinationclient.NewForConfig(access)
	if err != nil {
		return nil, nil, err
	}
	terms := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: LeaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: l.Namespace, Name: LeaseName},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.Holder},
		},
		LeaseDuration: cmp.Or(l.Duration, 15*time.Second), RenewDeadline: deadline, RetryPeriod: cmp.Or(l.RetryPeriod, 2*time.Second),
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
