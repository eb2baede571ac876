package workloadhealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// maxAnswer bounds a response of an API server, in bytes.
const maxAnswer = 2 << 20

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
		Annotations map[string]string `json:"annotations"`
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
	return api.EditStatus(ctx, "workloadentries", key.Namespace, key.Name, "conditions", func(object []byte) (any, error) {
		var o *workloadEntry
		if object != nil {
			o = new(workloadEntry)
			if err := json.Unmarshal(object, o); err != nil {
				return nil, fmt.Errorf("it is not a WorkloadEntry: %w", err)
			}
		}
		conditions, err := edit(o)
		if conditions == nil {
			return nil, err // not an interface with a nil slice
		}
		return conditions, err
	})
}
