package workloadhealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

const (
	// writeTimeout bounds one write, maxAnswer its response, in bytes.
	writeTimeout = 10 * time.Second
	maxAnswer    = 2 << 20
	// maxConflicts bounds the attempts to write an object with other writers.
	maxConflicts = 5
)

// versions of the kind, in order of preference.
var versions = [...]string{"v1", "v1beta1", "v1alpha3"}

// condition is a condition in the status of an Istio object. Conditions of other types
// stay as they are.
type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	LastProbeTime      string `json:"lastProbeTime,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	Message            string `json:"message,omitempty"`
}

func newCondition(problem string, at time.Time) *condition {
	time := at.UTC().Format(time.RFC3339Nano)
	c := &condition{Type: mesh.ConditionHealthy, Status: "True", LastProbeTime: time, LastTransitionTime: time, Message: problem}
	if problem != "" {
		c.Status = "False"
	}
	return c
}

// workloadEntry has the needed fields of a WorkloadEntry.
type workloadEntry struct {
	Metadata struct {
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		ServiceAccount string `json:"serviceAccount"`
	} `json:"spec"`
	Status struct {
		Conditions []json.RawMessage `json:"conditions"`
	} `json:"status"`
}

// healthyCondition returns the Healthy condition of the object, nil if there is none,
// and all other conditions.
func (o *workloadEntry) healthyCondition() (is *condition, others []json.RawMessage) {
	others = []json.RawMessage{}
	for _, raw := range o.Status.Conditions {
		var c condition
		if err := json.Unmarshal(raw, &c); err == nil && c.Type == mesh.ConditionHealthy {
			is = &c
			continue
		}
		others = append(others, raw)
	}
	return is, others
}

// setCondition writes the condition and returns the written one.
func setCondition(ctx context.Context, api *kube.Client, of workloadKey, c condition) (*condition, error) {
	var wrote *condition
	err := change(ctx, api, of.entry, func(o *workloadEntry) ([]json.RawMessage, error) {
		switch {
		case o == nil:
			return nil, errors.New("there is no such WorkloadEntry")
		case !snapshot.HealthChecked(o.Metadata.Annotations):
			return nil, fmt.Errorf("it is not health-checked: annotate it with %s=true", mesh.AnnotationHealthChecks)
		case o.Spec.ServiceAccount != of.account:
			return nil, fmt.Errorf("it is of service account %q, the proxy that names it of %q", o.Spec.ServiceAccount, of.account)
		}
		say := c
		was, others := o.healthyCondition()
		if was != nil && was.Status == say.Status && was.LastTransitionTime != "" {
			say.LastTransitionTime = was.LastTransitionTime
		}
		text, err := json.Marshal(say)
		if err != nil {
			return nil, err
		}
		wrote = &say
		return append(others, text), nil
	})
	if err != nil {
		return nil, err
	}
	return wrote, nil
}

// removeCondition removes a condition, unless another writer has changed it.
func removeCondition(ctx context.Context, api *kube.Client, of workloadKey, c *condition) error {
	return change(ctx, api, of.entry, func(o *workloadEntry) ([]json.RawMessage, error) {
		if o == nil {
			return nil, nil
		}
		was, others := o.healthyCondition()
		if was == nil || was.LastProbeTime != c.LastProbeTime || was.Status != c.Status {
			return nil, nil
		}
		return others, nil
	})
}

// change replaces the conditions of an object by the result of edit, unless that is nil.
// If there is no object, edit gets nil and must return nil.
func change(
	ctx context.Context, api *kube.Client, key snapshot.PodKey, edit func(*workloadEntry) ([]json.RawMessage, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for range maxConflicts {
		at, o, err := get(ctx, api, key)
		if err != nil {
			return err
		}
		conditions, err := edit(o)
		if err != nil || conditions == nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]string{"resourceVersion": o.Metadata.ResourceVersion},
			"status":   map[string]any{"conditions": conditions},
		})
		if err != nil {
			return err
		}
		err = api.Patch(types.MergePatchType).AbsPath(at, "status").Body(patch).Do(ctx).Error()
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	return errors.New("other writers change it all the time")
}

// get returns the object and its path; nil if there is none.
func get(ctx context.Context, api *kube.Client, key snapshot.PodKey) (at string, o *workloadEntry, err error) {
	for _, version := range versions {
		at = path.Join("/apis/networking.istio.io", version, "namespaces", key.Namespace, "workloadentries", key.Name)
		text, err := api.Get().AbsPath(at).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", nil, err
		}
		o = new(workloadEntry)
		if err := json.Unmarshal(text, o); err != nil {
			return "", nil, fmt.Errorf("%s is not a WorkloadEntry: %w", at, err)
		}
		return at, o, nil
	}
	return "", nil, nil
}
