package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// statusTimeout bounds one call of EditStatus.
	statusTimeout = 10 * time.Second
	// maxConflicts bounds the attempts to write an object with other writers.
	maxConflicts = 5
)

// istioVersions lists the versions of Istio's kinds, the preferred one first.
var istioVersions = [...]string{"v1", "v1beta1", "v1alpha3"}

// EditStatus replaces one field in the status of an object of networking.istio.io by the
// result of edit, unless that is nil. edit gets the JSON of the object. If there is no
// object, edit gets nil and must return nil. Changes of other writers are not lost: edit is
// called again after a conflict.
func (c *Client) EditStatus(ctx context.Context, resource, namespace, name, field string, edit func(object []byte) (any, error)) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	for range maxConflicts {
		at, object, err := c.istioObject(ctx, resource, namespace, name)
		if err != nil {
			return err
		}
		value, err := edit(object)
		if err != nil || value == nil {
			return err
		}
		var o struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(object, &o); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]string{"resourceVersion": o.Metadata.ResourceVersion},
			"status":   map[string]any{field: value},
		})
		if err != nil {
			return err
		}
		err = c.Patch(types.MergePatchType).AbsPath(at, "status").Body(patch).Do(ctx).Error()
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	return errors.New("other writers change it all the time")
}

// istioObject returns an object and its path; nil if there is none.
func (c *Client) istioObject(ctx context.Context, resource, namespace, name string) (at string, object []byte, err error) {
	for _, version := range istioVersions {
		at = path.Join("/apis/networking.istio.io", version, "namespaces", namespace, resource, name)
		object, err = c.Get().AbsPath(at).DoRaw(ctx)
		if !apierrors.IsNotFound(err) {
			return at, object, err
		}
	}
	return "", nil, nil
}
