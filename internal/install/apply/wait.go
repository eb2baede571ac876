package apply

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshctl/meshctl/internal/install"
)

// pollInterval is the time between two reads of an awaited object.
const pollInterval = 500 * time.Millisecond

// quiet is the time without a report after which wait reports the reason for waiting. Most
// Deployments are available earlier.
const quiet = 10 * time.Second

// wait waits until Deployments are available, and the API server can call webhooks.
func (c *Cluster) wait(ctx context.Context, objects []*unstructured.Unstructured, o Options) error {
	if o.Wait == 0 {
		return nil
	}
	for _, object := range objects {
		reported, polls := "", 0
		reason, err := c.until(ctx, o.Wait, func() (string, error) {
			reason, err := c.unavailable(ctx, object)
			if polls++; reason != "" && reason != reported && time.Duration(polls)*pollInterval >= quiet {
				reported, polls = reason, 0
				o.Say("waiting for %s: %s", install.Ref(object), reason)
			}
			return reason, err
		})
		if err != nil {
			return err
		}
		if reason != "" {
			return fmt.Errorf("%s: after %s %s is not available: %s", c.Name, o.Wait, install.Ref(object), reason)
		}
		o.Say("%s is available", install.Ref(object))
	}
	return nil
}

// until calls missing until it returns "", at most for a time. It returns the last reason.
func (c *Cluster) until(ctx context.Context, most time.Duration, missing func() (string, error)) (string, error) {
	bound, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		reason, err := missing()
		if err != nil || reason == "" {
			return "", err
		}
		select {
		case <-poll.C:
		case <-bound.Done():
			return reason, ctx.Err()
		}
	}
}

// unavailable returns why a Deployment or a webhook is not available, "" if it is.
func (c *Cluster) unavailable(ctx context.Context, want *unstructured.Unstructured) (string, error) {
	o, err := c.API.GetAny(ctx, want)
	if err != nil {
		return "", fmt.Errorf("%s: read %s: %w", c.Name, install.Ref(want), err)
	}
	if o == nil {
		return "it does not exist", nil
	}
	if o.GetKind() != "Deployment" {
		return withoutBundle(o), nil
	}
	return c.unavailableReplicas(ctx, o), nil
}

// unavailableReplicas returns why a Deployment is not available, "" if it is.
func (c *Cluster) unavailableReplicas(ctx context.Context, d *unstructured.Unstructured) string {
	number := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(d.Object, path...)
		return n
	}
	replicas := number("spec", "replicas")
	if number("status", "observedGeneration") == d.GetGeneration() && number("status", "updatedReplicas") == replicas &&
		number("status", "replicas") == replicas && number("status", "availableReplicas") == replicas {
		return ""
	}
	reasons := append([]string{fmt.Sprintf("%d of %d replicas are available", number("status", "availableReplicas"), replicas)}, conditions(d)...)
	return strings.Join(append(reasons, c.podFaults(ctx, d)...), "; ")
}

// withoutBundle returns a fault if the API server cannot verify the control plane behind
// a webhook, "" if it can.
func withoutBundle(o *unstructured.Unstructured) string {
	hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
	for _, h := range hooks {
		hook, _ := h.(map[string]any)
		if bundle, _, _ := unstructured.NestedString(hook, "clientConfig", "caBundle"); bundle == "" {
			reason := fmt.Sprintf("webhook %s has no caBundle, so the API server cannot call the control plane", hook["name"])
			if path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path"); strings.HasPrefix(path, "/inject/") {
				reason += "; the control plane of the other cluster writes it if it has a remote secret of this one"
			}
			return reason
		}
	}
	return ""
}

// conditions returns the messages of the conditions that report a fault.
func conditions(o *unstructured.Unstructured) []string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	var out []string
	for _, item := range list {
		c, _ := item.(map[string]any)
		failed := c["type"] == "ReplicaFailure" && c["status"] == string(metav1.ConditionTrue) ||
			c["type"] == "PodScheduled" && c["status"] == string(metav1.ConditionFalse)
		if message, _ := c["message"].(string); failed && message != "" {
			out = append(out, message)
		}
	}
	return out
}

// podFaults returns why the first faulty pod of a Deployment does not run. Without the
// right to read pods it returns none.
func (c *Cluster) podFaults(ctx context.Context, d *unstructured.Unstructured) []string {
	selected, _, _ := unstructured.NestedStringMap(d.Object, "spec", "selector", "matchLabels")
	pods, err := c.API.ListAny(ctx, install.PodKind, d.GetNamespace(), labels.SelectorFromSet(selected).String(), maxListed)
	if err != nil {
		return nil
	}
	for i := range pods {
		faults := conditions(&pods[i])
		for _, kind := range []string{"initContainerStatuses", "containerStatuses"} {
			list, _, _ := unstructured.NestedSlice(pods[i].Object, "status", kind)
			for _, item := range list {
				faults = append(faults, containerFaults(item)...)
			}
		}
		if len(faults) > 0 {
			return []string{"pod " + pods[i].GetName() + ": " + strings.Join(faults, ", ")}
		}
	}
	return nil
}

// containerFaults returns why a container waits or has ended.
func containerFaults(status any) []string {
	s, _ := status.(map[string]any)
	name, _ := s["name"].(string)
	var out []string
	for _, path := range [][]string{{"state", "waiting"}, {"state", "terminated"}, {"lastState", "terminated"}} {
		state, found, _ := unstructured.NestedMap(s, path...)
		reason, _ := state["reason"].(string)
		if !found || reason == "" || reason == "Completed" || reason == "ContainerCreating" || reason == "PodInitializing" {
			continue
		}
		if message, _ := state["message"].(string); message != "" {
			reason += ": " + message
		}
		out = append(out, "container "+name+": "+reason)
	}
	return out
}
