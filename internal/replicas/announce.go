package replicas

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
)

// goodbyeTimeout bounds the deletion of a replica's Lease when it stops.
const goodbyeTimeout = 3 * time.Second

// AnnouncerConfig configures an Announcer. All fields except Every are required.
type AnnouncerConfig struct {
	Access    *rest.Config // to the control plane's own cluster
	Namespace string       // of control planes
	// Say returns the announcement. It is called before each renewal.
	Say func() Announcement
	// Every is the interval between renewals; default 10 s.
	Every time.Duration
	Now   func() time.Time
	Log   *slog.Logger
}

// Announcer keeps the Lease by which other programs find a replica.
type Announcer struct {
	cfg AnnouncerConfig

	mu      sync.Mutex
	problem string
}

// NewAnnouncer returns an Announcer that has not written a Lease yet.
func NewAnnouncer(cfg AnnouncerConfig) *Announcer {
	if cfg.Every == 0 {
		cfg.Every = renewEvery
	}
	return &Announcer{cfg: cfg}
}

// Problem returns why the replica cannot be found by its Lease, empty if it can.
func (a *Announcer) Problem() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.problem
}

// Run keeps the Lease until ctx ends, then deletes it. It also deletes the Leases of
// replicas that ended without deleting theirs.
func (a *Announcer) Run(ctx context.Context) error {
	api, err := newAPI(a.cfg.Access)
	if err != nil {
		return fmt.Errorf("keep the Lease of the replica: %w", err)
	}
	defer api.Close()
	var kept *coordinationv1.Lease
	defer func() {
		if kept != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
			defer cancel()
			// If that fails, the Lease becomes stale.
			_ = api.Leases(kept.Namespace).Delete(ctx, kept.Name, metav1.DeleteOptions{})
		}
	}()
	tick := time.NewTicker(a.cfg.Every)
	defer tick.Stop()
	var swept time.Time
	for {
		kept, err = a.announce(ctx, api, kept)
		a.note(ctx, err)
		if now := a.cfg.Now(); err == nil && now.Sub(swept) >= forgetAfter {
			swept = now
			if err := a.sweep(ctx, api); err != nil && ctx.Err() == nil {
				a.cfg.Log.Debug("Leases of control planes that are gone are kept", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// announce writes the Lease. kept is the result of the previous call.
func (a *Announcer) announce(ctx context.Context, api *kube.Client, kept *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	said := a.cfg.Say()
	said.Renewed = a.cfg.Now()
	lease, err := said.lease(a.cfg.Namespace)
	if err != nil {
		return kept, err
	}
	leases := api.Leases(a.cfg.Namespace)
	if kept == nil {
		written, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		switch {
		case err == nil:
			return written, nil
		case !apierrors.IsAlreadyExists(err):
			return nil, err
		}
		if kept, err = leases.Get(ctx, lease.Name); err != nil {
			return nil, err
		}
	}
	lease.ResourceVersion = kept.ResourceVersion
	written, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, fmt.Errorf("somebody else wrote to it: %w", err) // it is made anew the next time
	case err != nil:
		return kept, err
	}
	return written, nil
}

// sweep deletes Leases that have not been renewed for forgetAfter.
func (a *Announcer) sweep(ctx context.Context, api *kube.Client) error {
	list, err := api.Leases(a.cfg.Namespace).List(ctx, metav1.ListOptions{LabelSelector: LeaseSelector})
	if err != nil {
		return err
	}
	for i := range list.Items {
		l := &list.Items[i]
		if l.Spec.RenewTime == nil || a.cfg.Now().Sub(l.Spec.RenewTime.Time) < forgetAfter {
			continue
		}
		err := api.Leases(l.Namespace).Delete(ctx, l.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// note keeps and logs the reason why the Lease cannot be kept.
func (a *Announcer) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = fmt.Sprintf("Lease of this replica in namespace %s: %v", a.cfg.Namespace, err)
	}
	a.mu.Lock()
	before := a.problem
	a.problem = text
	a.mu.Unlock()
	switch {
	case text != "" && before == "":
		a.cfg.Log.Warn("this replica cannot be found by its Lease, trying again", "namespace", a.cfg.Namespace, "error", err,
			"fix", "grant get, list, create, update and delete on leases.coordination.k8s.io in the system namespace")
	case text == "" && before != "":
		a.cfg.Log.Info("this replica can be found by its Lease again", "namespace", a.cfg.Namespace)
	}
}
