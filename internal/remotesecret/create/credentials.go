package create

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "meshctl"
)

// Credential is a Secret that ends tokens of an account when deleted: a token Secret,
// or the Secret that requested tokens are bound to.
type Credential struct {
	Name  string // in the namespace of the account
	Ours  bool   // meshctl made it
	Token string // the token of a token Secret, else empty
}

// Credentials returns the Credentials of an account by name: all that meshctl made, and
// foreign token Secrets. Tokens that other programs requested are not visible in the
// cluster.
func (c *APIServer) Credentials(ctx context.Context, a Account) ([]Credential, error) {
	found := map[string]Credential{}
	for _, options := range []metav1.ListOptions{
		{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken), Limit: maxSecrets},
		{LabelSelector: labelManagedBy + "=" + managedBy, Limit: maxSecrets},
	} {
		list, err := c.api.Secrets(a.Namespace).List(ctx, options)
		if err != nil {
			return nil, c.failed(err, "list the token secrets of %s", a.Namespace)
		}
		if list.Continue != "" {
			return nil, fmt.Errorf("%s: namespace %s has more than %d token secrets", c.Name, a.Namespace, maxSecrets)
		}
		for i := range list.Items {
			s := &list.Items[i]
			ours := s.Labels[labelManagedBy] == managedBy
			switch {
			case isTokenOf(s, a):
				found[s.Name] = Credential{s.Name, ours, string(s.Data[corev1.ServiceAccountTokenKey])}
			case ours && s.Type == corev1.SecretTypeOpaque && isBoundName(s.Name, a):
				found[s.Name] = Credential{Name: s.Name, Ours: true}
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Credential) int { return strings.Compare(a.Name, b.Name) }), nil
}

// CheckReader checks that an account really reads the cluster: meshctl made tokens of
// it, or the API server accepts the token that names it. Otherwise the writer of the
// remote secret may have invented the token.
func (c *APIServer) CheckReader(ctx context.Context, a Account, token string) error {
	found, err := c.Credentials(ctx, a)
	if err != nil || slices.ContainsFunc(found, func(f Credential) bool { return f.Ours }) {
		return err
	}
	bearer, err := c.as(token)
	if err != nil {
		return err
	}
	_, err = bearer.Missing(ctx, []Right{{Verb: "list", Resource: "services"}})
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("%s: service account %s is named by a token that the API server refuses, and meshctl made no token of it; "+
			"make the remote secret again with create-remote-secret", c.Name, a)
	}
	return err
}

// tokenSecretName returns the name of a Secret for tokens of the account. The suffix is
// empty for the first token without an end.
func tokenSecretName(a Account, suffix string) string {
	name := a.Name + "-istio-remote-secret-token"
	if suffix != "" {
		name += "-" + suffix
	}
	return name
}

// suffixSize is the length of a random suffix in bytes.
const suffixSize = 4

// isBoundName reports whether planToken gives such a name to Secrets that tokens of the
// account are bound to.
func isBoundName(name string, a Account) bool {
	suffix, ok := strings.CutPrefix(name, tokenSecretName(a, "")+"-")
	notHex := func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) }
	return ok && len(suffix) == 2*suffixSize && !strings.ContainsFunc(suffix, notHex)
}

// RightsToEnd returns the rights to find and delete Credentials.
func RightsToEnd(namespace string) []Right {
	return Right{Resource: "secrets", Namespace: namespace, Without: "tokens cannot be ended"}.withVerbs("list", "delete")
}
