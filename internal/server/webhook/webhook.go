// Package webhook serves the webhooks of the Kubernetes API: it injects pods and validates
// configuration. It decides from the request and the settings of its Config alone.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/serving"
)

const (
	// maxReview bounds a request, in bytes. An API server accepts objects of 3 MiB, and sends
	// the old one with the new one.
	maxReview = 8 << 20
	// maxReviews bounds the requests that each webhook decides at a time, and maxReviewsOfSource
	// those of one source; others wait for their turn.
	maxReviews, maxReviewsOfSource, maxWaiting = 16, 4, 1000
	// maxTime bounds a request, its body and its turn included. API servers wait for ten seconds.
	maxTime = 9 * time.Second
	// maxValues bounds the JSON values of a request, and valueCost is what one takes when it is decoded.
	maxValues, valueCost = 500_000, 128
	// Bounds of warnings, which API servers cut.
	maxWarnings, maxWarning = 10, 250
	// maxReason bounds the text of a refusal, which may repeat names of the object, in bytes.
	maxReason = 8 << 10
)

// Names of the webhooks for Config.Done.
const (
	Inject   = "inject"
	Validate = "validate"
)

// Results of Config.Done.
const (
	Injected = "injected"
	Skipped  = "skipped"
	Accepted = "accepted"
	Refused  = "refused"
	Failed   = "error"
)

// Config configures Handler. All fields are required.
type Config struct {
	// Injector returns the injector of the current settings.
	Injector func() (*inject.Injector, error)
	// Converter checks objects as the control plane does.
	Converter *source.Converter
	// Findings returns what other objects of the mesh show about a valid object, as warnings.
	Findings func(context.Context, snapshot.Object) []string
	// FromAPIServer reports whether a request is known to come from an API server. Only then the
	// response says what Findings returns, because it names other objects.
	FromAPIServer func(*http.Request) bool
	// Done counts each request, by the webhook Inject or Validate. The kind is what the request
	// says, or empty if the request could not be read.
	Done func(webhook, result string, kind metav1.GroupVersionKind)
	Log  *slog.Logger
}

// Handler serves /inject and /validate.
func Handler(c Config) http.Handler {
	h := &handler{c, newBodyBudget(maxUnderWay)}
	mux := http.NewServeMux()
	injects, validates := endpoint{Inject, newSlots(), h.inject}, endpoint{Validate, newSlots(), h.validate}
	for _, path := range []string{"/inject", "/inject/{path...}"} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, injects) })
	}
	mux.HandleFunc("POST /validate", func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, validates) })
	return mux
}

type handler struct {
	Config
	bodies *bodyBudget
}

// endpoint is one of the webhooks. Each has its own slots: validation takes longer than injection.
type endpoint struct {
	name   string
	slots  *serving.Slots
	decide decide
}

// newSlots returns slots for which sources take turns and, in a source, namespaces: an API server sends
// the requests of all namespaces.
func newSlots() *serving.Slots {
	return serving.NewSlots(serving.SlotLimits{
		Running: maxReviews, OfSource: maxReviewsOfSource, OfPart: maxReviewsOfSource, Waiting: maxWaiting, WaitingOfPart: maxWaiting,
	})
}

// decide decides about a request, and returns the result for Config.Done. It ends soon after the
// context.
type decide func(context.Context, *http.Request, *admissionRequest, *admissionv1.AdmissionResponse) (result string, err error)

// errTooLong is the error of a request that was not decided in time.
var errTooLong = fmt.Errorf("no decision within %s", maxTime)

func (h *handler) serve(w http.ResponseWriter, r *http.Request, at endpoint) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		h.fail(w, at.name, http.StatusUnsupportedMediaType, nil, errors.New("want Content-Type application/json"))
		return
	}
	h.bodies.under(w, r, func(ctx context.Context, body []byte, grow func(int) bool, err error) {
		if err != nil {
			h.fail(w, at.name, statusOfRead(err), nil, err)
			return
		}
		review, err := readReview(body)
		if err != nil {
			h.fail(w, at.name, http.StatusBadRequest, nil, err)
			return
		}
		if !grow(jsonValues(body) * valueCost) {
			h.fail(w, at.name, http.StatusServiceUnavailable, review.Request, errNoRoom)
			return
		}
		h.answer(ctx, w, r, at, review)
	})
}

// statusOfRead returns the status for a body that could not be read.
func statusOfRead(err error) int {
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errNoRoom):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// answer decides about a review when it is its turn, and writes the response.
func (h *handler) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, at endpoint, review *admissionReview) {
	leave, err := at.slots.Enter(ctx, serving.Caller{Source: serving.SourceOf(r.RemoteAddr).String(), Part: review.Request.Namespace})
	if err != nil {
		h.fail(w, at.name, http.StatusServiceUnavailable, review.Request, fmt.Errorf("too many requests: %w", err))
		return
	}
	defer leave()
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	result, err := at.decide(ctx, r, review.Request, response)
	if ctx.Err() != nil {
		h.fail(w, at.name, http.StatusServiceUnavailable, review.Request, context.Cause(ctx))
		return
	}
	if err != nil {
		h.fail(w, at.name, http.StatusInternalServerError, review.Request, err)
		return
	}
	response.Warnings = bounded(response.Warnings)
	text, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
	if err != nil {
		h.fail(w, at.name, http.StatusInternalServerError, review.Request, err)
		return
	}
	h.Done(at.name, result, review.Request.Kind)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// fail answers a request that could not be decided. The failure policy of the webhook then
// decides. The request is nil if it could not be read.
func (h *handler) fail(w http.ResponseWriter, name string, status int, request *admissionRequest, err error) {
	var kind metav1.GroupVersionKind
	if request != nil {
		kind = request.Kind
	}
	h.Done(name, Failed, kind)
	h.Log.Warn("webhook request failed", "webhook", name, "status", status, "error", clip(err.Error()))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, clip(err.Error()), status)
}

// admissionReview is what the webhooks read of an AdmissionReview. The decoder skips all other fields.
type admissionReview struct {
	metav1.TypeMeta
	Request *admissionRequest `json:"request"`
}

type admissionRequest struct {
	UID       types.UID               `json:"uid"`
	Kind      metav1.GroupVersionKind `json:"kind"`
	Name      string                  `json:"name"`
	Namespace string                  `json:"namespace"`
	Operation admissionv1.Operation   `json:"operation"`
	Object    runtime.RawExtension    `json:"object"`
}

// readReview returns the AdmissionReview in the body of a request. The object stays encoded.
func readReview(body []byte) (*admissionReview, error) {
	if n := jsonValues(body); n > maxValues {
		return nil, fmt.Errorf("the request has %d JSON values: at most %d are accepted", n, maxValues)
	}
	review := &admissionReview{}
	switch err := json.Unmarshal(body, review); {
	case err != nil:
		return nil, fmt.Errorf("the request is not an AdmissionReview: %w", err)
	case review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview":
		return nil, fmt.Errorf("the request is a %.100q of %.100q: want an AdmissionReview of %s", review.Kind, review.APIVersion, admissionv1.SchemeGroupVersion)
	case review.Request == nil || review.Request.UID == "":
		return nil, errors.New("the AdmissionReview has no request with a uid")
	}
	return review, nil
}

// jsonValues returns at least the number of values in a JSON text, from the characters that begin a
// mapping or a list, or separate two values.
func jsonValues(text []byte) int {
	n, quoted, escaped := 0, false, false
	for _, c := range text {
		switch {
		case escaped:
			escaped = false
		case c == '\\':
			escaped = quoted
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '[' || c == ','):
			n++
		}
	}
	return n
}

// refuse sets a response that denies the request.
func refuse(response *admissionv1.AdmissionResponse, reason error) {
	response.Allowed = false
	response.Result = &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: clip(reason.Error()),
	}
}

// clip returns a text, cut at maxReason.
func clip(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "") + "…"
}

// bounded returns the first warnings, each cut at the length that API servers show.
func bounded(warnings []string) []string {
	if len(warnings) > maxWarnings {
		warnings = warnings[:maxWarnings]
	}
	for i, text := range warnings {
		if runes := []rune(text); len(runes) > maxWarning {
			warnings[i] = string(runes[:maxWarning]) + "…"
		}
	}
	return warnings
}
