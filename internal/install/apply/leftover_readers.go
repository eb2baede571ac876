package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// readers returns the service accounts by which control planes of other clusters read this
// one, with their roles and bindings, as multicluster link made them. It leaves out those
// that still have tokens, and reports them.
func (c *Cluster) readers(ctx context.Context, namespace string, o Options) ([]*unstructured.Unstructured, error) {
	secretKind := schema.GroupVersionKind{Version: "v1", Kind: "Secret"}
	secrets, err := c.API.ListAny(ctx, secretKind, namespace, "", maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list Secrets: %w", c.Name, err)
	}
	var out []*unstructured.Unstructured
	accounts := map[string]bool{} // whether they go
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding", "ClusterRole", "Role"} {
		gvk := schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: kind}
		items, err := c.API.ListAny(ctx, gvk, metav1.NamespaceAll, create.SelectOwn, maxListed)
		if err != nil {
			return nil, fmt.Errorf("%s: list %s: %w", c.Name, kind, err)
		}
		for i := range items {
			items[i].SetGroupVersionKind(gvk)
			account, ok := create.ReaderOf(items[i].GetName(), namespace)
			if !ok {
				continue
			}
			unused, known := accounts[account.Name]
			if !known {
				unused = !slices.ContainsFunc(secrets, func(s unstructured.Unstructured) bool {
					return s.GetAnnotations()["kubernetes.io/service-account.name"] == account.Name || strings.HasPrefix(s.GetName(), account.Name+"-")
				})
				accounts[account.Name] = unused
				if !unused {
					o.Say("kept ServiceAccount %s and its roles: other clusters read this one with its tokens, until meshctl multicluster unlink", account)
				}
			}
			if unused {
				out = append(out, &items[i])
			}
		}
	}
	accountKind := schema.GroupVersionKind{Version: "v1", Kind: "ServiceAccount"}
	found, err := c.API.ListAny(ctx, accountKind, namespace, "", maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list ServiceAccounts: %w", c.Name, err)
	}
	for i := range found {
		// An account that another installer made has its labels.
		if accounts[found[i].GetName()] && len(found[i].GetLabels()) == 0 {
			found[i].SetGroupVersionKind(accountKind)
			out = append(out, &found[i])
		}
	}
	return out, nil
}
