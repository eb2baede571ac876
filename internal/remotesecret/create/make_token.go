package create

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

const (
	// tokenWait bounds the wait for the token of a new token Secret.
	tokenWait = 10 * time.Second
	// roleWait bounds the wait until a new role is in force.
	roleWait = 5 * time.Second
	// retryPause is the interval between attempts.
	retryPause = 50 * time.Millisecond
)

// IssuedToken is a token with the other results of Make.
type IssuedToken struct {
	Account Account
	Token   string
	// CA is the CA of the API server for the cluster's own pods, PEM.
	CA []byte
	// Expires is zero for a token without an end.
	Expires time.Time
	// Secret is the Secret in the account's namespace that the token is bound to.
	Secret string
	// Missing are the rights that the account lacks.
	Missing []Right
}

// Annotations returns the annotations of the token's remote secret. As with Istio's
// tools, there are none for a token without an end.
func (m *IssuedToken) Annotations() map[string]string {
	if m.Expires.IsZero() {
		return map[string]string{}
	}
	return map[string]string{
		remotesecret.AnnotationExpires:    m.Expires.UTC().Format(time.RFC3339),
		remotesecret.AnnotationIssuer:     m.Account.String(),
		remotesecret.AnnotationBoundTo:    m.Account.Namespace + "/" + m.Secret,
		remotesecret.AnnotationCredential: remotesecret.HashToken(m.Token),
	}
}

// Make writes the objects of the plan and returns the token.
func (c *APIServer) Make(ctx context.Context, p *Plan) (*IssuedToken, error) {
	if err := c.apply(ctx, p); err != nil {
		return nil, err
	}
	r := &p.request
	m := &IssuedToken{Account: r.Account, Secret: p.tokenSecret}
	var err error
	if r.TTL > 0 {
		err = c.expiring(ctx, m, r.TTL)
	} else {
		err = c.longLived(ctx, m, r.NoToken)
	}
	if err != nil {
		return nil, fmt.Errorf("could not get access token to read resources from local kube-apiserver: %w", err)
	}
	if r.NoToken {
		m.Token = ""
		return m, nil
	}
	m.Missing, err = c.missingWith(ctx, m.Token, r.Scope.Rights(r.Account), len(p.Objects) > 0)
	return m, err
}

// missingWith returns the rights that the token lacks. It waits for new roles to be in
// force.
func (c *APIServer) missingWith(ctx context.Context, token string, rights []Right, isNew bool) ([]Right, error) {
	bearer, err := c.as(token)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	missing := rights
	for end := time.After(roleWait); ; {
		left, err := bearer.Missing(ctx, missing)
		if err == nil {
			missing = left
		}
		wait := isNew && (len(left) > 0 || apierrors.IsUnauthorized(err))
		if !wait {
			return left, err
		}
		select {
		case <-end:
			return left, err
		case <-ctx.Done():
			return left, ctx.Err()
		case <-time.After(retryPause):
		}
	}
}

// longLived waits until the token Secret has a token.
func (c *APIServer) longLived(ctx context.Context, m *IssuedToken, onlyCA bool) error {
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	for {
		secret, err := c.api.Secrets(m.Account.Namespace).Get(ctx, m.Secret)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil {
			m.CA, m.Token = secret.Data[corev1.ServiceAccountRootCAKey], string(secret.Data[corev1.ServiceAccountTokenKey])
		}
		if len(m.CA) > 0 && (m.Token != "" || onlyCA) {
			return nil
		}
		select {
		case <-time.After(retryPause):
			continue
		case <-ctx.Done():
		}
		if len(m.CA) == 0 {
			return errors.New(`no "ca.crt" data found`)
		}
		return errors.New(`no "token" data found`)
	}
}

// expiring requests a token with an end, bound to the Secret.
func (c *APIServer) expiring(ctx context.Context, m *IssuedToken, ttl time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	for {
		var err error
		if m.CA, err = c.RootCA(wait, m.Account.Namespace); err == nil {
			break
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		select { // a new namespace gets its ConfigMap soon
		case <-wait.Done():
			return err
		case <-time.After(retryPause):
		}
	}
	var err error
	m.Token, m.Expires, err = request(ctx, c.api, m.Account, m.Secret, ttl)
	return err
}

// request requests a token of the account that is bound to the Secret.
func request(ctx context.Context, api *kube.Client, a Account, secret string, ttl time.Duration) (string, time.Time, error) {
	answer, err := api.CreateToken(ctx, a.Namespace, a.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: new(int64(ttl / time.Second)),
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret},
		},
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("request a token of service account %s: %w", a, err)
	}
	return answer.Status.Token, answer.Status.ExpirationTimestamp.Time, nil
}

// RootCA returns the CA that the cluster publishes in every namespace. If a new
// namespace lacks it, RootCA reads it from kube-system.
func (c *APIServer) RootCA(ctx context.Context, namespace string) ([]byte, error) {
	const name = "kube-root-ca.crt"
	var ca string
	var err error
	for _, ns := range []string{namespace, metav1.NamespaceSystem} {
		var m *corev1.ConfigMap
		if m, err = c.api.ConfigMaps(ns).Get(ctx, name); err == nil {
			if ca = m.Data[corev1.ServiceAccountRootCAKey]; ca != "" {
				return []byte(ca), nil
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's CA from ConfigMap %s: %w", name, err)
	}
	return nil, errors.New(`no "ca.crt" data found`)
}

// Renew requests a new token of the account that is bound to the same Secret. config is
// the access of the remote secret, with the present token.
func Renew(ctx context.Context, config *rest.Config, a Account, secret string, ttl time.Duration) (string, time.Time, error) {
	api, err := kube.NewClient(config)
	if err != nil {
		return "", time.Time{}, err
	}
	return request(ctx, api, a, secret, ttl)
}
