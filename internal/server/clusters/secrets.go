package clusters

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/kubeapi"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

const (
	requestTimeout = 15 * time.Second
	firstRetry     = 500 * time.Millisecond
	lastRetry      = 4 * time.Second
	watchTime      = 5 * time.Minute // then the API server ends a watch, and another begins
)

// Secrets finds the remote secrets of a namespace.
type Secrets struct {
	API       *rest.Config
	Namespace string
	// Spec makes a cluster of each entry of a secret.
	Spec func(remotesecret.Cluster) Spec
	Log  *slog.Logger
}

// Run implements Finder.
func (s *Secrets) Run(ctx context.Context, claims Claims) error {
	client, err := rest.HTTPClientFor(s.API)
	if err != nil {
		return fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	defer kube.CloseIdle(client.Transport)
	api, err := kubeapi.NewWith(s.API, client)
	if err != nil {
		return fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	f := &secretFollower{Secrets: s, secrets: api.Secrets(s.Namespace), claims: claims, known: make(map[string]string)}
	wait, lost := firstRetry, false
	for {
		err := f.watch(ctx, func() {
			if lost {
				s.Log.Info("remote secrets are watched again", "namespace", s.Namespace)
			}
			wait, lost = firstRetry, false
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // else it ended in good order, as watches do
			if !lost {
				s.Log.Error("remote secrets cannot be watched, the clusters that are known stay", "namespace", s.Namespace, "error", err)
			}
			lost = true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		wait = min(2*wait, lastRetry)
	}
}

// secretFollower is the state of Run.
type secretFollower struct {
	*Secrets
	secrets kubeapi.Objects[*corev1.Secret, *corev1.SecretList]
	claims  Claims
	known   map[string]string // the version of each secret that was handed over
	listed  bool
}

// watch takes all secrets, then each change until the watch ends.
func (f *secretFollower) watch(ctx context.Context, reached func()) error {
	listing, cancel := context.WithTimeout(ctx, requestTimeout)
	list, err := f.secrets.List(listing, metav1.ListOptions{LabelSelector: remotesecret.Selector})
	cancel()
	if err != nil {
		return fmt.Errorf("list them: %w", err)
	}
	reached()
	f.all(list.Items)
	ctx, cancel = context.WithTimeout(ctx, 2*watchTime)
	defer cancel()
	events, err := f.secrets.Watch(ctx, metav1.ListOptions{
		LabelSelector: remotesecret.Selector, ResourceVersion: list.ResourceVersion, TimeoutSeconds: new(int64(watchTime.Seconds())),
	})
	if err != nil {
		return fmt.Errorf("watch them: %w", err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		switch object := event.Object.(type) {
		case *corev1.Secret:
			if event.Type == watch.Deleted {
				f.gone(object.Name)
			} else {
				f.take(object)
			}
		case *metav1.Status:
			return fmt.Errorf("watch them: %w", apierrors.FromObject(object))
		}
	}
	return nil
}

// all takes everything that there is, the oldest first, so that control planes
// agree on which of two claims of a cluster came first.
func (f *secretFollower) all(secrets []corev1.Secret) {
	slices.SortFunc(secrets, func(a, b corev1.Secret) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	there := make(map[string]bool, len(secrets))
	for i := range secrets {
		there[secrets[i].Name] = true
	}
	for name := range f.known {
		if !there[name] {
			f.gone(name)
		}
	}
	for i := range secrets {
		f.take(&secrets[i])
	}
	if !f.listed {
		f.listed = true
		f.claims.Listed()
	}
}

func (f *secretFollower) origin(name string) Origin {
	return Origin{Kind: OriginSecret, Name: f.Namespace + "/" + name}
}

func (f *secretFollower) gone(name string) {
	if _, known := f.known[name]; known {
		delete(f.known, name)
		f.claims.Set(f.origin(name), nil)
	}
}

func (f *secretFollower) take(secret *corev1.Secret) {
	version := string(secret.UID) + " " + secret.ResourceVersion
	if f.known[secret.Name] == version {
		return
	}
	f.known[secret.Name] = version
	var specs []Spec
	for _, c := range remotesecret.Decode(secret) {
		specs = append(specs, f.Spec(c))
	}
	f.claims.Set(f.origin(secret.Name), specs)
}
