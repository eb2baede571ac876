package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/mesh"
)

// inject answers a request for a pod.
func (h *handler) inject(ctx context.Context, r *http.Request, request *admissionRequest, response *admissionv1.AdmissionResponse) (string, error) {
	if request.Kind.Kind != "Pod" || request.Kind.Group != "" || request.Operation != admissionv1.Create {
		return Skipped, nil
	}
	pod := inject.Pod{Namespace: request.Namespace}
	if err := parsePath(r.PathValue("path"), &pod); err != nil {
		return "", err
	}
	var err error
	if pod.Object, err = inject.Decode(request.Object.Raw); err != nil {
		return "", fmt.Errorf("the object is not a pod: %w", err)
	}
	injector, err := h.Injector()
	if err != nil {
		return "", err
	}
	name := strings.TrimPrefix(request.Namespace+"/"+request.Name, "/")
	result, err := injector.Inject(ctx, pod)
	if err != nil {
		h.Log.Info("pod refused", "pod", clip(name), "error", clip(err.Error()))
		refuse(response, fmt.Errorf("the pod cannot be injected: %w", err))
		return Refused, nil
	}
	response.Warnings = result.Warnings
	if result.Skipped != "" {
		if result.Asked {
			response.Warnings = append(response.Warnings, "the pod is not injected: "+result.Skipped)
		}
		h.Log.Debug("pod not injected", "pod", clip(name), "reason", result.Skipped)
		return Skipped, nil
	}
	if response.Patch, err = inject.Patch(pod.Object, result.Object); err != nil {
		return "", err
	}
	response.PatchType = new(admissionv1.PatchTypeJSONPatch)
	return Injected, nil
}

// parsePath sets what the path below /inject/ has: names and values in turn. A value has
// "--slash--" for each slash.
func parsePath(path string, pod *inject.Pod) error {
	if path == "" {
		return nil
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts)%2 != 0 {
		return errors.New("path: want /inject, followed by names and values such as /cluster/NAME/net/NAME")
	}
	pod.Metadata = map[string]string{}
	for i := 0; i < len(parts); i += 2 {
		value := strings.ReplaceAll(parts[i+1], "--slash--", "/")
		switch name := parts[i]; name {
		case "cluster":
			if pod.Cluster = mesh.ClusterID(value); !pod.Cluster.Valid() {
				return fmt.Errorf("path: cluster %q: want letters, digits, '.', '-' and '_', at most 63", value)
			}
		case "net":
			if pod.Network = mesh.NetworkID(value); !mesh.ClusterID(value).Valid() {
				return fmt.Errorf("path: net %q: want letters, digits, '.', '-' and '_', at most 63", value)
			}
		default:
			pod.Metadata[strings.ToUpper(name)] = value
		}
	}
	return nil
}
