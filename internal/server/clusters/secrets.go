package clusters

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

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
	f := &secretFollower{Secrets: s, registrar: registrar, known: make(map[string]string)}
	api.Secrets(s.Namespace).Follow(ctx, metav1.ListOptions{LabelSelector: remotesecret.Selector}, kube.Follower[*corev1.Secret, *corev1.SecretList]{
		List: func(list *corev1.SecretList) { f.all(list.Items) },
		Set:  f.take,
		Gone: func(secret *corev1.Secret) { f.gone(secret.Name) },
		Lost: func(err error) {
			s.Log.Error("remote secrets cannot be watched, the clusters that are known stay", "namespace", s.Namespace, "error", err)
		},
		Back: func() { s.Log.Info("remote secrets are watched again", "namespace", s.Namespace) },
	})
	return nil
}

// secretFollower is the state of Secrets.Run.
type secretFollower struct {
	*Secrets
	registrar Registrar
	known     map[string]string // version of each registered secret
	listed    bool
}

// all registers all secrets, the oldest first, so that control planes agree on the first
// registration of a cluster.
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
		f.registrar.Listed()
	}
}

func (f *secretFollower) origin(name string) Origin {
	return Origin{Kind: OriginSecret, Name: f.Namespace + "/" + name}
}

func (f *secretFollower) gone(name string) {
	if _, known := f.known[name]; known {
		delete(f.known, name)
		f.registrar.Set(f.origin(name), nil)
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
	f.registrar.Set(f.origin(secret.Name), specs)
}
