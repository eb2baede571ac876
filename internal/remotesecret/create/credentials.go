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

// Credential is a Secret that tokens of an account end with: a token Secret, or
// the Secret that requested tokens are bound to.
type Credential struct {
	// Name is that of the Secret, in the namespace of the account.
	Name string
	// Ours is set when meshctl made the Secret.
	Ours bool
	// Token is that of a token Secret, empty for requested tokens.
	Token string
}

// Credentials returns the Secrets that tokens of the account end with, by name:
// all that meshctl made, and the token Secrets that others made. Tokens that
// others requested leave no trace in the cluster.
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

// CheckReader returns an error unless the account is one that others read the cluster
// by: meshctl made tokens of it, or the API server accepts the token that names it.
// What a token names is else the word of whoever wrote it into a remote secret.
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
			"make the remote secret anew with create-remote-secret", c.Name, a)
	}
	return err
}

// tokenSecretName is the name of a Secret of tokens of the account. The suffix
// is empty for the first token without an end.
func tokenSecretName(a Account, suffix string) string {
	name := a.Name + "-istio-remote-secret-token"
	if suffix != "" {
		name += "-" + suffix
	}
	return name
}

// suffixSize is the length of a random suffix, in bytes.
const suffixSize = 4

// isBoundName reports whether the name is one that planToken gives the Secrets
// that tokens of the account are bound to.
func isBoundName(name string, a Account) bool {
	suffix, ok := strings.CutPrefix(name, tokenSecretName(a, "")+"-")
	notHex := func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) }
	return ok && len(suffix) == 2*suffixSize && !strings.ContainsFunc(suffix, notHex)
}

// RightsToEnd are what is needed to find and delete the Secrets of Credentials.
func RightsToEnd(namespace string) []Right {
	var rights []Right
	for _, verb := range []string{"list", "delete"} {
		rights = append(rights, Right{
			Verb: verb, Resource: "secrets", Namespace: namespace, Without: "tokens cannot be ended",
		})
	}
	return rights
}
