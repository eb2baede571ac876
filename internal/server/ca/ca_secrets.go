package ca

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

// Names of the Secrets. The first one that exists is used.
const (
	PluggedInSecret  = "cacerts"         // in either layout of store.Layout
	SelfSignedSecret = "istio-ca-secret" // of this type:
	typeCARoot       = "istio.io/ca-root"
)

const requestTimeout = 15 * time.Second

// SecretConfig configures a SecretSource. All fields are required.
type SecretConfig struct {
	API       *rest.Config
	Namespace string
	// Make makes the data of a self-signed CA, for a namespace without a CA.
	Make func() (map[string][]byte, error)
	Log  *slog.Logger
}

// SecretSource is the CA in the Secrets of a namespace. It may be used concurrently.
type SecretSource struct {
	cfg     SecretConfig
	api     *kube.Client
	secrets kube.Objects[*corev1.Secret, *corev1.SecretList]
	have    [2]atomic.Pointer[corev1.Secret] // of names; nil: not there
}

func names() [2]string { return [2]string{PluggedInSecret, SelfSignedSecret} }

// OpenSecrets reads the Secrets. If there is none, it creates a self-signed CA. If
// several control planes do so at once, one wins and all use its CA.
func OpenSecrets(ctx context.Context, cfg SecretConfig) (*SecretSource, error) {
	api, err := kube.NewClient(cfg.API)
	if err != nil {
		return nil, err
	}
	s := &SecretSource{cfg: cfg, api: api, secrets: api.Secrets(cfg.Namespace)}
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

func (s *SecretSource) get(ctx context.Context, i int) error {
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

// create creates the self-signed CA, unless another control plane is faster.
func (s *SecretSource) create(ctx context.Context) error {
	data, err := s.cfg.Make()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = s.secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SelfSignedSecret, Namespace: s.cfg.Namespace},
		Type:       typeCARoot, Data: data,
	}, metav1.CreateOptions{FieldManager: "meshctl"})
	switch {
	case err == nil:
		s.cfg.Log.Warn("no Secret cacerts: certificates are signed by a new self-signed CA, which other clusters do not trust",
			"secret", s.cfg.Namespace+"/"+SelfSignedSecret)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("keep a self-signed CA in the Secret %s/%s: %w; make the namespace first", s.cfg.Namespace, SelfSignedSecret, err)
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("keep a self-signed CA in the Secret %s/%s: %w; plug a CA in with meshctl certs cacerts, or let the control plane create Secrets there",
			s.cfg.Namespace, SelfSignedSecret, err)
	}
	return s.get(ctx, 1)
}

// current returns the Secret in use, nil if there is none.
func (s *SecretSource) current() *corev1.Secret {
	for i := range s.have {
		if have := s.have[i].Load(); have != nil {
			return have
		}
	}
	return nil
}

// Place names the Secret in use.
func (s *SecretSource) Place() string {
	name := PluggedInSecret
	if have := s.current(); have != nil {
		name = have.Name
	}
	return "Secret " + s.cfg.Namespace + "/" + name
}

// Stamp identifies the version of the Secret in use.
func (s *SecretSource) Stamp() store.Stamp {
	have := s.current()
	if have == nil {
		return store.Stamp{}
	}
	return store.Stamp{Version: string(have.UID) + " " + have.ResourceVersion}
}

// Read returns the last known contents of the Secret. It never fails.
func (s *SecretSource) Read() (*store.Material, error) {
	have := s.current()
	if have == nil {
		return store.FromSecret(s.Place(), "", nil), nil
	}
	return store.FromSecret("Secret "+have.Namespace+"/"+have.Name, string(have.UID)+" "+have.ResourceVersion, have.Data), nil
}

// Follow watches the Secrets. While the API cannot be reached, the last contents
// stay.
func (s *SecretSource) Follow(ctx context.Context, changed func()) error {
	defer s.api.Close()
	var g errgroup.Group
	for i := range s.have {
		g.Go(func() error {
			s.follow(ctx, i, changed)
			return nil
		})
	}
	return g.Wait()
}

// follow watches one Secret.
func (s *SecretSource) follow(ctx context.Context, i int, changed func()) {
	log := s.cfg.Log.With("secret", s.cfg.Namespace+"/"+names()[i])
	set := func(have *corev1.Secret) {
		s.have[i].Store(have)
		changed()
	}
	var there bool
	this := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, names()[i]).String()}
	s.secrets.Follow(ctx, this, kube.Follower[*corev1.Secret]{
		Set: func(have *corev1.Secret) {
			there = true
			set(have)
		},
		Gone: func(string, string) {
			there = false
			set(nil)
		},
		Listed: func() {
			if !there { // since OpenSecrets read it
				set(nil)
			}
		},
		Lost: func(err error) {
			log.Warn("the Secret of the signing CA cannot be watched, the last known contents stay", "error", err)
		},
		Back: func() { log.Info("the Secret of the signing CA is watched again") },
	})
}
