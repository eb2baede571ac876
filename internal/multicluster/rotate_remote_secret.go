package multicluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// previousSuffix is the suffix of the old secret's copy, which is kept until all
// replicas use the new one. It has no label, so no control plane reads it.
const previousSuffix = "-previous"

// Rotation replaces the credential of a cluster in the clusters that read it.
type Rotation struct {
	// From is the cluster of the credential. To must be all clusters with the remote
	// secret, as the old token ends for all.
	From      *Cluster
	To        []*Cluster
	ID        mesh.ClusterID
	Namespace string
	// TTL is the life of the new token; zero means the life of the old one.
	TTL  time.Duration
	Rand io.Reader
	// Say reports progress to a person.
	Say func(format string, args ...any)
}

// held is the remote secret in one cluster, with the copy of the old one, if any.
type held struct {
	in       *Cluster
	now      *corev1.Secret
	previous *corev1.Secret
}

// previous returns the copy that an unfinished rotation keeps, or nil.
func (c *Cluster) previous(ctx context.Context, namespace string, id mesh.ClusterID) (*corev1.Secret, error) {
	s, err := c.Secret(ctx, namespace, remotesecret.Name(id)+previousSuffix)
	if err != nil || s == nil {
		return nil, err
	}
	if s.Labels[remotesecret.Label] != "" {
		return nil, nil // the remote secret of a cluster whose name has the suffix
	}
	return s, nil
}

// rotated returns the remote secrets whose old credential is kept.
func rotated(all []held) []held {
	return slices.DeleteFunc(slices.Clone(all), func(h held) bool { return h.previous == nil })
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
		if h.previous, err = c.previous(ctx, r.Namespace, r.ID); err != nil {
			return nil, err
		}
		if h.previous != nil && maps.EqualFunc(h.previous.Data, h.now.Data, bytes.Equal) {
			h.previous = nil // the earlier call ended before it wrote the new one
		}
		out = append(out, h)
	}
	return out, nil
}

func clusterOf(secret *corev1.Secret, id mesh.ClusterID) (*remotesecret.Cluster, error) {
	for _, c := range remotesecret.Decode(secret) {
		if c.ID == id {
			return &c, c.Err
		}
	}
	return nil, fmt.Errorf("secret %s/%s does not hold cluster %s", secret.Namespace, secret.Name, id)
}

// Begin makes a new credential and writes it. After an interrupted call, it completes
// that one. It returns the hash of the new credential.
func (r *Rotation) Begin(ctx context.Context) (string, error) {
	all, err := r.read(ctx)
	if err != nil {
		return "", err
	}
	var fresh *corev1.Secret
	if changed := rotated(all); len(changed) > 0 {
		fresh = changed[0].now // of an earlier call
	}
	for _, h := range all {
		if err := h.in.CheckTarget(ctx, h.now, ""); err != nil {
			return "", err
		}
	}
	if err := r.From.Require(ctx, create.RightsToEnd(r.Namespace)); err != nil {
		return "", err
	}
	if fresh == nil {
		if fresh, err = r.renewed(ctx, all[0].now); err != nil {
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

// replace copies the old secret, then writes the new one.
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

// ours returns the annotations of meshctl, without others such as kubectl's copy of the
// object.
func ours(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	maps.DeleteFunc(out, func(key, _ string) bool {
		return key != remotesecret.AnnotationCluster && !strings.HasPrefix(key, "meshctl.io/")
	})
	return out
}

// renewed makes a secret like the old one with a new token.
func (r *Rotation) renewed(ctx context.Context, old *corev1.Secret) (*corev1.Secret, error) {
	c, err := clusterOf(old, r.ID)
	if err != nil {
		return nil, err
	}
	account, err := readerOf(c, r.Namespace)
	if err != nil {
		return nil, err
	}
	there := true
	if account.Name == create.Reader {
		// It needs no proof that it is the reader, and whoever revoked its tokens may have deleted it.
		there, err = r.From.HasAccount(ctx, account)
	} else {
		err = r.From.CheckReader(ctx, account, c.User.Token)
	}
	if err != nil {
		return nil, err
	}
	ttl := r.TTL
	if claims, err := remotesecret.ReadToken(c.User.Token); err == nil && ttl == 0 && !claims.Expiry.IsZero() {
		ttl = max(claims.Expiry.Sub(claims.IssuedAt).Round(time.Second), create.MinTTL)
	}
	plan, err := r.From.Plan(ctx, create.Request{
		Account: account, Create: !there || ttl > 0 && !c.Renewed, TTL: ttl, Fresh: true, Rand: r.Rand,
		Scope: create.Scope{Style: create.Minimal, Namespaces: c.Namespaces, CredentialNamespaces: c.CredentialNamespaces, Authenticate: true, Renew: ttl > 0},
	})
	if err != nil {
		return nil, err
	}
	issued, err := r.From.Make(ctx, plan)
	if err != nil {
		return nil, err
	}
	for _, lacking := range (&Made{IssuedToken: issued}).Lacking() {
		r.Say("Warning: %s", lacking)
	}
	annotations := ours(old.Annotations)
	for _, key := range []string{
		remotesecret.AnnotationExpires, remotesecret.AnnotationIssuer, remotesecret.AnnotationBoundTo, remotesecret.AnnotationCredential,
	} {
		delete(annotations, key)
	}
	maps.Copy(annotations, issued.Annotations())
	return remotesecret.Build(remotesecret.Spec{
		Cluster: r.ID, Namespace: r.Namespace, Server: c.Server.Server, TLSServerName: c.Server.TLSServerName,
		CA: c.Server.CertificateAuthorityData, Token: issued.Token, Annotations: annotations,
	})
}

// Finish ends all earlier tokens of the reader that meshctl made, and deletes the copies
// of the old secrets. Call it after every replica uses the new token. It returns the
// reasons why old tokens still work.
func (r *Rotation) Finish(ctx context.Context) ([]string, error) {
	all, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	ending := &Readers{From: r.From, Namespace: r.Namespace, Say: r.Say}
	for _, h := range all {
		if h.previous != nil {
			if err := ending.AddSecret(h.previous, r.ID); err != nil {
				return nil, err
			}
		}
		kept, err := secretOf(h.now, r.ID)
		if err != nil {
			return nil, err
		}
		ending.Keep = append(ending.Keep, kept)
	}
	_, working, err := ending.End(ctx)
	if err != nil {
		return nil, err
	}
	return working, r.forget(ctx, all)
}

// secretOf returns the Secret that the token of a remote secret is bound to.
func secretOf(secret *corev1.Secret, id mesh.ClusterID) (string, error) {
	c, err := clusterOf(secret, id)
	if err != nil {
		return "", err
	}
	claims, err := remotesecret.ReadToken(c.User.Token)
	return claims.Secret, err
}

// forget deletes the copies of the old secrets.
func (r *Rotation) forget(ctx context.Context, all []held) error {
	for _, h := range rotated(all) {
		if err := h.in.DeleteSecret(ctx, r.Namespace, h.previous.Name); err != nil {
			return err
		}
	}
	return nil
}

// Abort restores the old secrets and ends the new token.
func (r *Rotation) Abort(ctx context.Context) error {
	all, err := r.read(ctx)
	if err != nil {
		return err
	}
	changed := rotated(all)
	if len(changed) == 0 {
		return errors.New("there is no rotation to abort")
	}
	for _, h := range changed {
		back := h.previous.DeepCopy()
		back.Name = h.now.Name
		back.Labels = map[string]string{remotesecret.Label: remotesecret.LabelValue}
		back.Annotations = ours(back.Annotations)
		if err := h.in.Apply(ctx, back); err != nil {
			return err
		}
		r.Say("%s: put the old credential back into secret %s/%s", h.in.Name, r.Namespace, back.Name)
	}
	if err := r.endNew(ctx, changed); err != nil {
		return err
	}
	return r.forget(ctx, changed)
}

// endNew ends only the tokens that the rotation made: clusters may use earlier ones.
func (r *Rotation) endNew(ctx context.Context, changed []held) error {
	for _, h := range changed {
		c, err := clusterOf(h.now, r.ID)
		if err != nil {
			return err
		}
		account, err := readerOf(c, r.Namespace)
		if err != nil {
			return err
		}
		name, err := secretOf(h.now, r.ID)
		if err != nil {
			return err
		}
		if kept, err := secretOf(h.previous, r.ID); err == nil && kept == name {
			continue
		}
		found, err := r.From.Credentials(ctx, account)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(found, func(f create.Credential) bool { return f.Ours && f.Name == name }) {
			continue // it has ended, or meshctl did not make it
		}
		if err := r.From.DeleteSecret(ctx, r.Namespace, name); err != nil {
			return err
		}
		r.Say("%s: deleted secret %s/%s, with which credential %s ends", r.From.Name, r.Namespace, name, c.CredentialHash())
	}
	return nil
}
