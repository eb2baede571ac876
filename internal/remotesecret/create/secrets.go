package create

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/remotesecret"
)

const maxSecrets = 1000

// CheckTarget fails if the remote secret of the cluster with this UID cannot or should
// not be written here.
func (c *APIServer) CheckTarget(ctx context.Context, secret *corev1.Secret, uid string) error {
	own, err := c.UID(ctx)
	if err != nil {
		return err
	}
	if own == uid && secret.Name != remotesecret.ConfigName {
		return fmt.Errorf("%s: this is the cluster that the secret is for; a control plane does not read its own cluster by a remote secret", c.Name)
	}
	_, err = c.api.Namespaces().Get(ctx, secret.Namespace)
	if err != nil {
		return c.failed(err, "read namespace %s, where the secret belongs", secret.Namespace)
	}
	return c.Require(ctx, RightsToWrite(secret.Namespace))
}

// RightsToWrite returns the rights that Apply needs in the namespace.
func RightsToWrite(namespace string) []Right {
	return Right{Resource: "secrets", Namespace: namespace, Without: "the remote secret cannot be written"}.withVerbs("create", "patch")
}

// Apply writes a remote secret.
func (c *APIServer) Apply(ctx context.Context, secret *corev1.Secret) error {
	s := secret.DeepCopy()
	// The API server would not remove a later missing key of stringData.
	s.StringData = nil
	if s.Data == nil {
		s.Data = make(map[string][]byte, len(secret.StringData))
	}
	for key, value := range secret.StringData {
		s.Data[key] = []byte(value)
	}
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
	s.ObjectMeta = metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, Labels: s.Labels, Annotations: s.Annotations}
	return c.applyOne(ctx, s)
}

// Secrets returns the remote secrets of the namespace, sorted by name.
func (c *APIServer) Secrets(ctx context.Context, namespace string) ([]corev1.Secret, error) {
	list, err := c.api.Secrets(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: remotesecret.Selector, Limit: maxSecrets,
	})
	if err != nil {
		return nil, c.failed(err, "list the remote secrets of namespace %s", namespace)
	}
	if list.Continue != "" {
		return nil, fmt.Errorf("%s: namespace %s has more than %d remote secrets", c.Name, namespace, maxSecrets)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Secret) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) })
	return list.Items, nil
}

// DeleteSecret deletes a Secret, if it exists.
func (c *APIServer) DeleteSecret(ctx context.Context, namespace, name string) error {
	err := c.api.Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if _, err := exists(err); err != nil {
		return c.failed(err, "delete secret %s/%s", namespace, name)
	}
	return nil
}

// Secret returns a Secret, or nil if it does not exist.
func (c *APIServer) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	s, err := c.api.Secrets(namespace).Get(ctx, name)
	switch found, err := exists(err); {
	case err != nil:
		return nil, c.failed(err, "read secret %s/%s", namespace, name)
	case !found:
		return nil, nil
	}
	return s, nil
}
