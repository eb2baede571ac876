package create

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/kube"
)

// Request describes the account and the token for Plan and Make.
type Request struct {
	Account Account
	Scope   Scope
	// Create creates the account, its namespace and role if they are missing.
	Create bool
	// TokenSecret is an existing token Secret; empty means any of the account.
	TokenSecret string
	// TTL is the life of the token, which is then bound to its own Secret. Zero means a
	// token without an end, in a token Secret.
	TTL time.Duration
	// Fresh makes a new token even if there is one.
	Fresh bool
	// NoToken makes no token, as a plug-in of the reader gets one.
	NoToken bool
	// Rand supplies names of new Secrets.
	Rand io.Reader
}

// MinTTL is the shortest life of tokens in API servers.
const MinTTL = 10 * time.Minute

// Plan lists the objects that Make writes.
type Plan struct {
	request Request
	// Objects are applied in this order. They include the Secret of a new token.
	Objects []kube.Object
	// Stale are roles of the account in namespaces that it no longer reads.
	Stale []kube.Object

	tokenSecret string // exists, or is one of Objects
}

// Plan finds the missing objects. It writes nothing, and fails if the caller may not
// write them.
func (c *APIServer) Plan(ctx context.Context, r Request) (*Plan, error) {
	p := &Plan{request: r}
	if err := c.planAccount(ctx, p); err != nil {
		return nil, err
	}
	if err := c.planToken(ctx, p); err != nil {
		return nil, err
	}
	return p, c.Require(ctx, p.rights())
}

func (c *APIServer) planAccount(ctx context.Context, p *Plan) error {
	a := p.request.Account
	_, err := c.api.ServiceAccounts(a.Namespace).Get(ctx, a.Name)
	found, unread := exists(err)
	if unread != nil {
		return c.failed(err, "read service account %s", a)
	}
	if !found && !p.request.Create {
		return fmt.Errorf("failed retrieving service account %s.%s required for creating the remote secret "+
			"(hint: try installing a minimal Istio profile on the cluster first, or run with '--create-service-account=true'): %w",
			a.Name, a.Namespace, err)
	}
	if !p.request.Create {
		return nil
	}
	if found && p.request.Scope.Style != Istio {
		missing, err := c.missingOf(ctx, a, p.request.Scope.Rights(a))
		if err == nil && len(missing) == 0 {
			return nil // the account already has its role
		}
		if err != nil && !apierrors.IsForbidden(err) {
			return err
		}
	}
	if !found {
		_, err := c.api.Namespaces().Get(ctx, a.Namespace)
		switch found, err := exists(err); {
		case err != nil:
			return c.failed(err, "read namespace %s", a.Namespace)
		case !found:
			p.Objects = append(p.Objects, &corev1.Namespace{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: a.Namespace},
			})
		}
	}
	objects := p.request.Scope.Objects(a)
	if found {
		objects = objects[1:] // do not change a foreign account
	}
	p.Objects = append(p.Objects, objects...)
	return c.planStale(ctx, p)
}

// planStale finds roles that an earlier call made for other namespaces.
func (c *APIServer) planStale(ctx context.Context, p *Plan) error {
	selector := metav1.ListOptions{FieldSelector: "metadata.name=" + p.request.Account.roleName()}
	bindings, err := c.api.RoleBindings(metav1.NamespaceAll).List(ctx, selector)
	if apierrors.IsForbidden(err) {
		return nil // the caller cannot have made any
	}
	if err != nil {
		return c.failed(err, "list role bindings")
	}
	for _, b := range bindings.Items {
		wanted := func(o kube.Object) bool { return kindOf(o) == "RoleBinding" && o.GetNamespace() == b.Namespace }
		if !slices.ContainsFunc(p.Objects, wanted) {
			name := metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}
			p.Stale = append(p.Stale,
				&rbacv1.RoleBinding{TypeMeta: rbacKind("RoleBinding"), ObjectMeta: name}, &rbacv1.Role{TypeMeta: rbacKind("Role"), ObjectMeta: name})
		}
	}
	return nil
}

func (c *APIServer) planToken(ctx context.Context, p *Plan) error {
	r, a := &p.request, p.request.Account
	if r.TTL == 0 && !r.Fresh {
		name, err := c.findTokenSecret(ctx, r)
		if err != nil {
			return err
		}
		if p.tokenSecret = name; name != "" || r.NoToken && r.TokenSecret != "" {
			return nil
		}
	}
	meta := metav1.ObjectMeta{Name: tokenSecretName(a, ""), Namespace: a.Namespace}
	kind := corev1.SecretTypeServiceAccountToken
	if r.TTL > 0 || r.Fresh {
		suffix := make([]byte, suffixSize)
		if _, err := io.ReadFull(r.Rand, suffix); err != nil {
			return fmt.Errorf("name a secret: %w", err)
		}
		meta.Name = tokenSecretName(a, hex.EncodeToString(suffix))
	}
	meta.Labels = map[string]string{labelManagedBy: managedBy}
	meta.Annotations = map[string]string{corev1.ServiceAccountNameKey: a.Name}
	if r.TTL > 0 {
		// It stays empty. The token is bound to it.
		kind = corev1.SecretTypeOpaque
		meta.Annotations = map[string]string{"meshctl.io/purpose": "deleting this revokes the token of a remote secret"}
	}
	p.tokenSecret = meta.Name
	p.Objects = append(p.Objects, &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta, Type: kind,
	})
	return nil
}

// findTokenSecret returns the name of a token Secret of the account, or "".
func (c *APIServer) findTokenSecret(ctx context.Context, r *Request) (string, error) {
	secrets, a := c.api.Secrets(r.Account.Namespace), r.Account
	if r.TokenSecret != "" {
		s, err := secrets.Get(ctx, r.TokenSecret)
		if err != nil {
			return "", c.failed(err, "could not get specified secret %s/%s", a.Namespace, r.TokenSecret)
		}
		if !isTokenOf(s, a) {
			return "", fmt.Errorf("secret %s/%s does not reference ServiceAccount %s", a.Namespace, r.TokenSecret, a.Name)
		}
		return r.TokenSecret, nil
	}
	list, err := secrets.List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)})
	if err != nil {
		return "", c.failed(err, "list the token secrets of %s", a.Namespace)
	}
	for _, s := range list.Items {
		if isTokenOf(&s, a) {
			return s.Name, nil
		}
	}
	return "", nil
}

func isTokenOf(s *corev1.Secret, a Account) bool {
	return s.Type == corev1.SecretTypeServiceAccountToken && s.Annotations[corev1.ServiceAccountNameKey] == a.Name && s.DeletionTimestamp == nil
}

// rights returns the rights that Make needs.
func (p *Plan) rights() []Right {
	a := p.request.Account
	const noToken = "there is no token"
	var out []Right
	for _, o := range p.Objects {
		kind := o.GetObjectKind().GroupVersionKind()
		without := "the account cannot be made"
		switch {
		case kind.Group == rbacv1.GroupName:
			without = "the account cannot be given its role"
		case kind.Kind == "Secret":
			without = noToken
		}
		r := Right{Group: kind.Group, Resource: strings.ToLower(kind.Kind) + "s", Namespace: o.GetNamespace(), Without: without}
		out = append(out, r.withVerbs("create", "patch")...) // Apply needs both to create an object
	}
	if p.request.TTL > 0 {
		return append(out, Right{Verb: "create", Resource: "serviceaccounts/token", Namespace: a.Namespace, Name: a.Name, Without: noToken})
	}
	return append(out, Right{Verb: "get", Resource: "secrets", Namespace: a.Namespace, Without: noToken})
}

func (c *APIServer) apply(ctx context.Context, p *Plan) error {
	for _, o := range p.Objects {
		if err := c.applyOne(ctx, o); err != nil {
			return err
		}
	}
	for _, o := range p.Stale {
		if _, err := exists(c.api.Delete(ctx, o)); err != nil {
			return c.failed(err, "delete %s %s/%s", kindOf(o), o.GetNamespace(), o.GetName())
		}
	}
	return nil
}

func (c *APIServer) applyOne(ctx context.Context, o kube.Object) error {
	if err := c.api.Apply(ctx, o, fieldManager); err != nil {
		return c.failed(err, "apply %s %s", kindOf(o), o.GetName())
	}
	return nil
}

func kindOf(o kube.Object) string { return o.GetObjectKind().GroupVersionKind().Kind }
