package multicluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/mint"
	"github.com/meshctl/meshctl/internal/token/peek"
)

// previousSuffix names the copy of the old secret that is kept until the new
// one is in use everywhere. It has no label, so no control plane reads it.
const previousSuffix = "-previous"

// Rotation replaces the credential of a cluster in the clusters that read it.
type Rotation struct {
	// From is the cluster whose credential it is, To those that have the remote
	// secret, all of them: the old token ends for everybody.
	From      *Cluster
	To        []*Cluster
	ID        mesh.ClusterID
	Namespace string
	// TTL is the life of the new token; zero means that of the old one.
	TTL  time.Duration
	Rand io.Reader
	// Say tells a person what was done.
	Say func(format string, args ...any)
}

// held is the remote secret of one cluster, and its predecessor if there is one.
type held struct {
	in       *Cluster
	now      *corev1.Secret
	previous *corev1.Secret
}

func (r *Rotation) read(ctx context.Context) ([]held, error) {
	var out []held
	for _, c := range r.To {
		h := held{in: c}
		var err error
		name := remotesecret.Name(r.ID)
		if h.now, err = c.Secret(ctx, r.Namespace, name); err != nil {
			return nil, err
		}
		if h.now == nil {
			return nil, fmt.Errorf("%s: there is no secret %s/%s; make it with create-remote-secret", c.Name, r.Namespace, name)
		}
		if h.previous, err = c.Secret(ctx, r.Namespace, name+previousSuffix); err != nil {
			return nil, err
		}
		if h.previous != nil && maps.EqualFunc(h.previous.Data, h.now.Data, bytes.Equal) {
			h.previous = nil // the call that copied it ended before it wrote the new one
		}
		out = append(out, h)
	}
	return out, nil
}

// clusterOf decodes the cluster of a remote secret.
func clusterOf(secret *corev1.Secret, id mesh.ClusterID) (*remotesecret.Cluster, error) {
	for _, c := range remotesecret.Decode(secret) {
		if c.ID == id {
			return &c, c.Err
		}
	}
	return nil, fmt.Errorf("secret %s/%s does not hold cluster %s", secret.Namespace, secret.Name, id)
}

// Begin makes a new credential and writes it, or, when an earlier call was
// interrupted, writes what that one made where it is missing. It returns the
// hash of the new credential.
func (r *Rotation) Begin(ctx context.Context) (string, error) {
	all, err := r.read(ctx)
	if err != nil {
		return "", err
	}
	var fresh *corev1.Secret
	for _, h := range all {
		if h.previous != nil {
			fresh = h.now // of an earlier call
		}
	}
	for _, h := range all {
		if err := h.in.CheckTarget(ctx, h.now, ""); err != nil {
			return "", err
		}
	}
	if fresh == nil {
		if fresh, err = r.mint(ctx, all[0].now); err != nil {
			return "", err
		}
	} else {
		r.Say("an earlier rotation is continued")
	}
	c, err := clusterOf(fresh, r.ID)
	if err != nil {
		return "", err
	}
	for _, h := range all {
		if h.previous != nil {
			continue
		}
		if err := r.replace(ctx, h, fresh); err != nil {
			return "", err
		}
		r.Say("%s: wrote the new credential %s into secret %s/%s", h.in.Name, c.CredentialHash(), r.Namespace, fresh.Name)
	}
	return c.CredentialHash(), nil
}

// replace keeps a copy of the old secret before it writes the new one.
func (r *Rotation) replace(ctx context.Context, h held, fresh *corev1.Secret) error {
	old := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: h.now.Name + previousSuffix, Namespace: h.now.Namespace, Annotations: ours(h.now.Annotations)},
		Data:       h.now.Data,
	}
	if err := h.in.Apply(ctx, old); err != nil {
		return err
	}
	return h.in.Apply(ctx, fresh)
}

// ours are the annotations that we write; kubectl's copy of all is none of them.
func ours(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	maps.DeleteFunc(out, func(key, _ string) bool {
		return key != remotesecret.AnnotationCluster && !strings.HasPrefix(key, "meshctl.io/")
	})
	return out
}

// mint makes a secret like the old one with a new token.
func (r *Rotation) mint(ctx context.Context, old *corev1.Secret) (*corev1.Secret, error) {
	c, err := clusterOf(old, r.ID)
	if err != nil {
		return nil, err
	}
	account, err := mint.AccountOf(c)
	if err != nil {
		return nil, err
	}
	ttl := r.TTL
	if claims, err := peek.Token(c.User.Token); err == nil && ttl == 0 && !claims.Expiry.IsZero() {
		ttl = max(claims.Expiry.Sub(claims.IssuedAt).Round(time.Second), mint.MinTTL)
	}
	plan, err := r.From.Plan(ctx, mint.Request{
		Account: account, Create: ttl > 0 && !c.Renewed, TTL: ttl, Fresh: true, Rand: r.Rand,
		Scope: mint.Scope{Style: mint.Minimal, Namespaces: c.Namespaces, CredentialNamespaces: c.CredentialNamespaces, Authenticate: true, Renew: ttl > 0},
	})
	if err != nil {
		return nil, err
	}
	minted, err := r.From.Make(ctx, plan)
	if err != nil {
		return nil, err
	}
	for _, lacking := range (&Made{Minted: minted}).Lacking() {
		r.Say("warn: %s", lacking)
	}
	annotations := ours(old.Annotations)
	for _, key := range []string{
		remotesecret.AnnotationExpires, remotesecret.AnnotationIssuer, remotesecret.AnnotationBoundTo, remotesecret.AnnotationCredential,
	} {
		delete(annotations, key)
	}
	maps.Copy(annotations, minted.Annotations())
	return remotesecret.Build(remotesecret.Spec{
		Cluster: r.ID, Namespace: r.Namespace, Server: c.Server.Server, TLSServerName: c.Server.TLSServerName,
		CA: c.Server.CertificateAuthorityData, Token: minted.Token, Annotations: annotations,
	})
}

// Finish ends the old token and forgets it. Only when every replica uses the
// new one is it time for that.
func (r *Rotation) Finish(ctx context.Context) error {
	all, err := r.read(ctx)
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.previous == nil {
			continue
		}
		if err := r.revoke(ctx, h.previous, h.now); err != nil {
			return err
		}
		if err := h.in.DeleteSecret(ctx, r.Namespace, h.previous.Name); err != nil {
			return err
		}
	}
	return nil
}

// Abort puts the old secrets back and ends the new token.
func (r *Rotation) Abort(ctx context.Context) error {
	all, err := r.read(ctx)
	if err != nil {
		return err
	}
	found := false
	for _, h := range all {
		if h.previous == nil {
			continue
		}
		found = true
		back := h.previous.DeepCopy()
		back.Name = h.now.Name
		back.Labels = map[string]string{remotesecret.Label: remotesecret.LabelValue}
		back.Annotations = ours(back.Annotations)
		if err := h.in.Apply(ctx, back); err != nil {
			return err
		}
		r.Say("%s: put the old credential back into secret %s/%s", h.in.Name, r.Namespace, back.Name)
	}
	if !found {
		return errors.New("there is no rotation to abort")
	}
	for _, h := range all {
		if h.previous == nil {
			continue
		}
		if err := r.revoke(ctx, h.now, h.previous); err != nil {
			return err
		}
		if err := h.in.DeleteSecret(ctx, r.Namespace, h.previous.Name); err != nil {
			return err
		}
	}
	return nil
}

// revoke ends the token of a secret, unless it is that of the one to keep.
func (r *Rotation) revoke(ctx context.Context, secret, keep *corev1.Secret) error {
	c, err := clusterOf(secret, r.ID)
	if err != nil {
		return err
	}
	if kept, err := clusterOf(keep, r.ID); err == nil && kept.CredentialHash() == c.CredentialHash() {
		return nil
	}
	return Revoke(ctx, r.From, secret, c, r.Say)
}

// Revoke ends the token of a remote secret in the cluster that it is for.
func Revoke(ctx context.Context, from *Cluster, secret *corev1.Secret, c *remotesecret.Cluster, say func(string, ...any)) error {
	account, err := mint.AccountOf(c)
	if err != nil {
		return err
	}
	_, name, _ := strings.Cut(secret.Annotations[remotesecret.AnnotationBoundTo], "/")
	if name == "" {
		if name, err = from.TokenSecret(ctx, account, c.User.Token); err != nil {
			return err
		}
	}
	if name == "" {
		return nil // it is revoked already
	}
	if err := from.DeleteSecret(ctx, account.Namespace, name); err != nil {
		return err
	}
	say("%s: deleted secret %s/%s, with which credential %s ends", from.Name, account.Namespace, name, c.CredentialHash())
	return nil
}
