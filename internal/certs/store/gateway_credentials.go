package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxGateways bounds the Gateways and the pods of a Gateway that are read.
const maxGateways = 5000

// secretName names a Secret.
type secretName struct{ namespace, name string }

func (s secretName) String() string { return s.namespace + "/" + s.name }

// gatewayCredentials returns the Secrets that the Gateways of the cluster name, as items for Objects, and
// why some were not read. A Secret that does not exist is no item: meshctl check reports it.
func (c *ClusterSecrets) gatewayCredentials(ctx context.Context) (items []any, unread []error, err error) {
	gateways, err := c.core.ListAny(ctx, schema.GroupVersionKind{Group: "networking.istio.io", Version: "v1", Kind: "Gateway"}, "", "", maxGateways)
	if apierrors.IsForbidden(err) {
		return nil, []error{fmt.Errorf("%s: you may not list Gateways, so their credentials are not read", c.Context)}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: list Gateways: %w", c.Context, err)
	}
	var wanted []secretName
	places := map[string][]string{} // namespaces by selector
	for i := range gateways {
		names := credentialNames(&gateways[i])
		if len(names) == 0 {
			continue
		}
		selector, _, _ := unstructured.NestedStringMap(gateways[i].Object, "spec", "selector")
		in, err := c.podNamespaces(ctx, labels.SelectorFromSet(selector).String(), gateways[i].GetNamespace(), places)
		if err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			for _, namespace := range in {
				s := secretName{namespace, name}
				if namespace, name, ok := strings.Cut(name, "/"); ok {
					s = secretName{namespace, name}
				}
				if !slices.Contains(wanted, s) {
					wanted = append(wanted, s)
				}
			}
		}
	}
	for _, s := range wanted {
		found, err := c.core.Secrets(s.namespace).Get(ctx, s.name)
		switch {
		case apierrors.IsNotFound(err):
		case apierrors.IsForbidden(err):
			unread = append(unread, fmt.Errorf("%s: you may not get Secret %s, which a Gateway names", c.Context, s))
		case err != nil:
			return nil, nil, fmt.Errorf("%s: Secret %s: %w", c.Context, s, err)
		default:
			items = append(items, secretItem(found))
		}
	}
	return items, unread, nil
}

// podNamespaces returns the namespaces of the pods that a Gateway selects, else its own, and keeps them in
// known.
func (c *ClusterSecrets) podNamespaces(ctx context.Context, selector, own string, known map[string][]string) ([]string, error) {
	if in := known[selector]; in != nil {
		return in, nil
	}
	pods, err := c.core.ListAny(ctx, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "", selector, maxGateways)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%s: list the pods of Gateways: %w", c.Context, err)
	}
	var in []string
	for i := range pods {
		in = append(in, pods[i].GetNamespace())
	}
	slices.Sort(in)
	if in = slices.Compact(in); len(in) == 0 {
		return []string{own}, nil
	}
	known[selector] = in
	return in, nil
}

// credentialNames returns the names of Secrets in a Gateway.
func credentialNames(gateway *unstructured.Unstructured) []string {
	var out []string
	servers, _, _ := unstructured.NestedSlice(gateway.Object, "spec", "servers")
	for _, item := range servers {
		server, _ := item.(map[string]any)
		tls, _, _ := unstructured.NestedMap(server, "tls")
		for _, field := range []string{"credentialName", "caCertCredentialName"} {
			if name, _ := tls[field].(string); name != "" {
				out = append(out, strings.TrimPrefix(name, "kubernetes://"))
			}
		}
		names, _, _ := unstructured.NestedStringSlice(tls, "credentialNames")
		for _, name := range names {
			out = append(out, strings.TrimPrefix(name, "kubernetes://"))
		}
	}
	return out
}
