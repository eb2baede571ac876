// Package secret is the signing CA that lies in Secrets of a Kubernetes
// cluster: the one that somebody plugged in, else the self-signed one as Istio
// keeps it.
package secret

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/kube"
)

// Names of the Secrets. The first that is there counts.
const (
	PluggedIn  = "cacerts"         // in either layout of store.Layout
	SelfSigned = "istio-ca-secret" // of this type:
	typeCARoot = "istio.io/ca-root"
)

const requestTimeout = 15 * time.Second

// Config of a Source. Everything is required.
type Config struct {
	API       *rest.Config
	Namespace string
	// Make makes the data of a self-signed CA for a namespace that has none.
	Make func() (map[string][]byte, error)
	Log  *slog.Logger
}

// Source is the CA in the Secrets of a namespace. It may be used concurrently.
type Source struct {
	cfg     Config
	secrets kube.Objects[*corev1.Secret, *corev1.SecretList]
	have    [2]atomic.Pointer[corev1.Secret] // of names; nil: not there
}

func names() [2]string { return [2]string{PluggedIn, SelfSigned} }

// Open reads the Secrets. When there is none, it makes the one of a self-signed
// CA; of several control planes that do so at once one wins, and all use its CA.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	api, err := kube.NewClient(cfg.API)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	s := &Source{cfg: cfg, secrets: api.Secrets(cfg.Namespace)}
	for i := range s.have {
		if err := s.get(ctx, i); err != nil {
			return nil, err
		}
	}
	if s.current() == nil {
		return s, s.create(ctx)
	}
	return s, nil
}

func (s *Source) get(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name := names()[i]
	found, err := s.secrets.Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		s.have[i].Store(nil)
		return nil
	case err != nil:
		return fmt.Errorf("read the Secret %s/%s of the signing CA: %w", s.cfg.Namespace, name, err)
	}
	s.have[i].Store(found)
	return nil
}

// create makes the self-signed CA, unless somebody else does at the same time.
func (s *Source) create(ctx context.Context) error {
	data, err := s.cfg.Make()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = s.secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SelfSigned, Namespace: s.cfg.Namespace},
		Type:       typeCARoot, Data: data,
	}, metav1.CreateOptions{FieldManager: "meshctl"})
	switch {
	case err == nil:
		s.cfg.Log.Warn("no Secret cacerts: certificates are signed by a new self-signed CA, which other clusters do not trust",
			"secret", s.cfg.Namespace+"/"+SelfSigned)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("keep a self-signed CA in the Secret %s/%s: %w; make the namespace first", s.cfg.Namespace, SelfSigned, err)
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("keep a self-signed CA in the Secret %s/%s: %w; plug a CA in with meshctl certs cacerts, or let the control plane create Secrets there",
			s.cfg.Namespace, SelfSigned, err)
	}
	return s.get(ctx, 1)
}

// current is the Secret that counts, nil when there is none.
func (s *Source) current() *corev1.Secret {
	for i := range s.have {
		if have := s.have[i].Load(); have != nil {
			return have
		}
	}
	return nil
}

// Place names the Secret that counts.
func (s *Source) Place() string {
	name := PluggedIn
	if have := s.current(); have != nil {
		name = have.Name
	}
	return "Secret " + s.cfg.Namespace + "/" + name
}

// Stamp is that of the Secret that counts.
func (s *Source) Stamp() store.Stamp {
	have := s.current()
	if have == nil {
		return store.Stamp{}
	}
	return store.Stamp{Version: string(have.UID) + " " + have.ResourceVersion}
}

// Read returns what the Secret held when it was last seen. It never fails.
func (s *Source) Read() (*store.Material, error) {
	have := s.current()
	if have == nil {
		return store.FromSecret(s.Place(), "", nil), nil
	}
	return store.FromSecret("Secret "+have.Namespace+"/"+have.Name, string(have.UID)+" "+have.ResourceVersion, have.Data), nil
}

// Follow watches the Secrets. While the API cannot be reached, what was read
// last stays.
func (s *Source) Follow(ctx context.Context, changed func()) error {
	var g errgroup.Group
	for i := range s.have {
		g.Go(func() error {
			s.follow(ctx, i, changed)
			return nil
		})
	}
	return g.Wait()
}

// follow watches one of the Secrets.
func (s *Source) follow(ctx context.Context, i int, changed func()) {
	log := s.cfg.Log.With("secret", s.cfg.Namespace+"/"+names()[i])
	set := func(have *corev1.Secret) {
		s.have[i].Store(have)
		changed()
	}
	this := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, names()[i]).String()}
	s.secrets.Follow(ctx, this, kube.Follower[*corev1.Secret, *corev1.SecretList]{
		List: func(list *corev1.SecretList) {
			if len(list.Items) == 0 {
				set(nil)
			} else {
				set(&list.Items[0])
			}
		},
		Set:  set,
		Gone: func(*corev1.Secret) { set(nil) },
		Lost: func(err error) {
			log.Warn("the Secret of the signing CA cannot be watched, what was read last stays", "error", err)
		},
		Back: func() { log.Info("the Secret of the signing CA is watched again") },
	})
}
