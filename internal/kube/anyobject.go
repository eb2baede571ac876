package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

// jsonType is the form of objects of any kind.
const jsonType = "application/json"

// ApplyOptions configure ApplyAny.
type ApplyOptions struct {
	Manager string // the owner of the applied fields
	Force   bool   // take over fields of other managers
	DryRun  bool   // write nothing
}

// ApplyAny writes an object of any kind by server-side apply and returns the result.
func (c *Client) ApplyAny(ctx context.Context, o *unstructured.Unstructured, a ApplyOptions) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	options := &metav1.PatchOptions{FieldManager: a.Manager, Force: new(a.Force)}
	if a.DryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return c.anyObject(ctx, c.one(http.MethodPatch, o).SetHeader("Content-Type", string(types.ApplyPatchType)).
		VersionedParams(options, c.parameters).Body(body))
}

// MergeAny changes fields of the object with the kind and the name of o by a merge patch.
// manager then owns these fields.
func (c *Client) MergeAny(ctx context.Context, o *unstructured.Unstructured, fields map[string]any, manager string) error {
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return c.one(http.MethodPatch, o).SetHeader("Content-Type", string(types.MergePatchType)).
		VersionedParams(&metav1.PatchOptions{FieldManager: manager}, c.parameters).Body(body).Do(ctx).Error()
}

// GetAny returns the object with the kind and the name of o, nil if there is none or its
// kind is not installed.
func (c *Client) GetAny(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	got, err := c.anyObject(ctx, c.one(http.MethodGet, o))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return got, err
}

func (c *Client) anyObject(ctx context.Context, r *rest.Request) (*unstructured.Unstructured, error) {
	text, err := Raw(r.SetHeader("Accept", jsonType).Do(ctx))
	if err != nil {
		return nil, err
	}
	o := new(unstructured.Unstructured)
	if err := o.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("object of the API server: %w", err)
	}
	return o, nil
}

// Raw returns the body of an answer, or the error with the text of the API server, which
// Result.Raw leaves out.
func Raw(r rest.Result) ([]byte, error) {
	if err := r.Error(); err != nil {
		return nil, err
	}
	return r.Raw()
}

// ListAny returns the objects of a kind in a namespace, with "" in all, that a label
// selector selects, at most limit. It returns none if the kind is not installed.
func (c *Client) ListAny(ctx context.Context, kind schema.GroupVersionKind, namespace, selector string, limit int64) ([]unstructured.Unstructured, error) {
	return c.listResource(ctx, ResourceOf(kind), namespace, selector, limit)
}

func (c *Client) listResource(
	ctx context.Context, resource schema.GroupVersionResource, namespace, selector string, limit int64,
) ([]unstructured.Unstructured, error) {
	text, err := Raw(c.request(http.MethodGet, resource.GroupVersion(), resource.Resource, namespace).SetHeader("Accept", jsonType).
		VersionedParams(&metav1.ListOptions{LabelSelector: selector, Limit: limit}, c.parameters).Do(ctx))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list unstructured.UnstructuredList
	if err := list.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("list of %s: %w", resource.Resource, err)
	}
	return list.Items, nil
}

// Version returns the version of the API server.
func (c *Client) Version(ctx context.Context) (version.Info, error) {
	var info version.Info
	text, err := Raw(c.Get().AbsPath("/version").SetHeader("Accept", jsonType).Do(ctx))
	if err == nil {
		err = json.Unmarshal(text, &info)
	}
	if err != nil {
		return info, fmt.Errorf("read the version of the API server: %w", err)
	}
	return info, nil
}

// Resource is a resource that an API server serves, in its preferred version.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
	Verbs      []string
}

// discoveryType is the form of the list of all resources.
const discoveryType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Resources returns the resources that the API server serves.
func (c *Client) Resources(ctx context.Context) ([]Resource, error) {
	var out []Resource
	for _, root := range []string{"/api", "/apis"} {
		text, err := Raw(c.Get().AbsPath(root).SetHeader("Accept", discoveryType).Do(ctx))
		if err != nil {
			return nil, fmt.Errorf("list the resources of the API server: %w", err)
		}
		found, err := decodeResources(text)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

func decodeResources(text []byte) ([]Resource, error) {
	var groups struct {
		Kind  string
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct {
				Version   string
				Resources []struct {
					Resource, Scope string
					Verbs           []string
					ResponseKind    struct{ Kind string }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &groups); err != nil {
		return nil, fmt.Errorf("list of resources: %w", err)
	}
	if groups.Kind != "APIGroupDiscoveryList" {
		return nil, errors.New("the API server does not list its resources in one answer: Kubernetes is older than 1.30")
	}
	var out []Resource
	for _, g := range groups.Items {
		seen := map[string]bool{} // the preferred version comes first
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if !seen[r.Resource] {
					seen[r.Resource] = true
					out = append(out, Resource{
						schema.GroupVersionResource{Group: g.Metadata.Name, Version: v.Version, Resource: r.Resource},
						r.ResponseKind.Kind, r.Scope == "Namespaced", r.Verbs,
					})
				}
			}
		}
	}
	return out, nil
}

// Contents returns the objects of a namespace, at most limit of each resource.
func (c *Client) Contents(ctx context.Context, namespace string, limit int64) ([]unstructured.Unstructured, error) {
	resources, err := c.Resources(ctx)
	if err != nil {
		return nil, err
	}
	var out []unstructured.Unstructured
	for _, r := range resources {
		if !r.Namespaced || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") || r.Kind == "Endpoints" {
			continue // EndpointSlices replace the deprecated Endpoints
		}
		items, err := c.listResource(ctx, r.GroupVersionResource, namespace, "", limit)
		if err != nil {
			return nil, fmt.Errorf("list %s in %s: %w", r.GroupResource(), namespace, err)
		}
		out = append(out, items...)
	}
	return out, nil
}
