package webhook

import (
	"errors"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/server/source"
)

// validate answers a request for an object of the Istio API. It refuses what the control plane
// would not use, and warns about parts without effect and what does not fit other objects.
func (h *handler) validate(r *http.Request, request *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse) (string, error) {
	switch request.Operation {
	case admissionv1.Create, admissionv1.Update:
	default:
		return Skipped, nil
	}
	if len(request.Object.Raw) == 0 {
		return "", errors.New("the request has no object")
	}
	decoded, err := h.Converter.DecodeJSON(request.Object.Raw)
	for _, w := range decoded.Warnings {
		response.Warnings = append(response.Warnings, w.Error())
	}
	if fault, ok := errors.AsType[*source.FieldError](err); ok {
		kind := schema.GroupKind{Group: request.Kind.Group, Kind: request.Kind.Kind}
		h.Log.Info("object refused", "object", source.ObjectName(decoded.Key), "error", err)
		refuse(response, fmt.Errorf("%s: %w", kind.String(), fault))
		return Refused, nil
	}
	if err != nil {
		return "", err
	}
	if decoded.Skipped {
		return Skipped, nil
	}
	if decoded.Object != nil {
		response.Warnings = append(response.Warnings, h.Findings(r.Context(), decoded.Object)...)
	}
	return Accepted, nil
}
