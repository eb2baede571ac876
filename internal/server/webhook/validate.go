package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// validate answers a request for an object of the Istio API. It refuses what the control plane
// would not use, and security policies that it does not fully understand. It warns about parts
// without effect and what does not fit other objects.
func (h *handler) validate(ctx context.Context, r *http.Request, request *admissionRequest, response *admissionv1.AdmissionResponse) (string, error) {
	switch request.Operation {
	case admissionv1.Create, admissionv1.Update:
	default:
		return Skipped, nil
	}
	if len(request.Object.Raw) == 0 {
		return "", errors.New("the request has no object")
	}
	var object metav1.TypeMeta
	if err := json.Unmarshal(request.Object.Raw, &object); err != nil || !source.IsIstio(object.APIVersion) {
		return Skipped, err // no rule of the webhook configuration names other groups, whose objects may take long to decode
	}
	decoded, err := h.Converter.DecodeJSON(request.Object.Raw)
	warnings := decoded.Warnings
	fault, refused := err, len(fields.FaultsOf(err)) > 0
	if last := len(warnings) - 1; err == nil && decoded.Closed != nil {
		fault, refused, warnings = warnings[last], true, warnings[:last] // the unknown part
	}
	for _, w := range warnings {
		response.Warnings = append(response.Warnings, w.Error())
	}
	if refused {
		kind := schema.GroupKind{Group: request.Kind.Group, Kind: request.Kind.Kind}
		h.Log.Info("object refused", "object", clip(fields.ObjectName(decoded.Key)), "error", clip(fault.Error()))
		refuse(response, fmt.Errorf("%s: %w", kind.String(), fault))
		return Refused, nil
	}
	if err != nil {
		return "", err
	}
	if decoded.Skipped {
		return Skipped, nil
	}
	if decoded.Object != nil && h.FromAPIServer(r) {
		response.Warnings = append(response.Warnings, h.Findings(ctx, decoded.Object)...)
	}
	return Accepted, nil
}
