package clusters

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// Secrets finds the remote secrets of a namespace.
type Secrets struct {
	API       *rest.Config
	Namespace string
	// Spec returns the spec for a cluster in a secret.
	Spec func(remotesecret.Cluster) Spec
	Log  *slog.Logger
}

// Run implements Finder.
func (s *Secrets) Run(ctx context.Context, registrar Registrar) error {
	api, err := kube.NewClient(s.API)
	if err != nil {
		return err
	}
	defer api.Close()
	origin := func(name string) Origin { return Origin{Kind: OriginSecret, Name: s.Namespace + "/" + name} }
	// The oldest Secret of a list comes first, so that control planes agree on the first
	// registration of a cluster.
	api.Secrets(s.Namespace).Follow(ctx, metav1.ListOptions{LabelSelector: remotesecret.Selector}, kube.Follower[*corev1.Secret]{
		Set: func(secret *corev1.Secret) {
			var specs []Spec
			for _, c := range remotesecret.Decode(secret) {
				specs = append(specs, s.Spec(c))
			}
			registrar.Set(origin(secret.Name), specs)
		},
		Gone:   func(_, name string) { registrar.Set(origin(name), nil) },
		Listed: sync.OnceFunc(registrar.Listed),
		Lost: func(err error) {
			s.Log.Error("remote secrets cannot be watched, the clusters that are known stay", "namespace", s.Namespace, "error", err)
		},
		Back: func() { s.Log.Info("remote secrets are watched again", "namespace", s.Namespace) },
	})
	return nil
}
