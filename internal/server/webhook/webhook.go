// Package webhook serves the webhooks of the Kubernetes API: it injects pods and validates
// configuration. It decides from the request and the settings of its Config alone.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

const (
	// maxReview bounds a request, in bytes. An API server accepts objects of 3 MiB, and sends
	// the old one with the new one.
	maxReview = 8 << 20
	// maxReviews bounds the requests that are decoded at a time; others wait for maxWait.
	maxReviews = 16
	maxWait    = 5 * time.Second
	// Bounds of warnings, which API servers cut.
	maxWarnings, maxWarning = 10, 250
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
	// Done counts each request, by the webhook inject or validate.
	Done func(webhook, result string)
	Log  *slog.Logger
}

// Handler serves /inject and /validate.
func Handler(c Config) http.Handler {
	h := &handler{c, make(chan struct{}, maxReviews)}
	mux := http.NewServeMux()
	for _, path := range []string{"/inject", "/inject/{path...}"} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, "inject", h.inject) })
	}
	mux.HandleFunc("POST /validate", func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, "validate", h.validate) })
	return mux
}

type handler struct {
	Config
	running chan struct{}
}

// decide decides about a request, and returns the result for Config.Done.
type decide func(*http.Request, *admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse) (result string, err error)

func (h *handler) serve(w http.ResponseWriter, r *http.Request, name string, decide decide) {
	ctx, cancel := context.WithTimeout(r.Context(), maxWait)
	defer cancel()
	select {
	case h.running <- struct{}{}:
		defer func() { <-h.running }()
	case <-ctx.Done():
		h.fail(w, name, http.StatusServiceUnavailable, errors.New("too many requests"))
		return
	}
	review, status, err := readReview(w, r)
	if err != nil {
		h.fail(w, name, status, err)
		return
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	result, err := decide(r, review.Request, response)
	if err != nil {
		h.fail(w, name, http.StatusInternalServerError, err)
		return
	}
	response.Warnings = bounded(response.Warnings)
	text, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
	if err != nil {
		h.fail(w, name, http.StatusInternalServerError, err)
		return
	}
	h.Done(name, result)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// fail answers a request that could not be decided. The failure policy of the webhook then
// decides.
func (h *handler) fail(w http.ResponseWriter, name string, status int, err error) {
	h.Done(name, Failed)
	h.Log.Warn("webhook request failed", "webhook", name, "status", status, "error", err)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, err.Error(), status)
}

// readReview reads the AdmissionReview of a request, or returns the status of the error.
func readReview(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionReview, int, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, errors.New("want Content-Type application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the request has more than %d bytes", maxReview)
	}
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("read the request: %w", err)
	}
	review := &admissionv1.AdmissionReview{}
	switch err := json.Unmarshal(body, review); {
	case err != nil:
		return nil, http.StatusBadRequest, fmt.Errorf("the request is not an AdmissionReview: %w", err)
	case review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview":
		return nil, http.StatusBadRequest, fmt.Errorf("the request is a %.100q of %.100q: want an AdmissionReview of %s", review.Kind, review.APIVersion, admissionv1.SchemeGroupVersion)
	case review.Request == nil || review.Request.UID == "":
		return nil, http.StatusBadRequest, errors.New("the AdmissionReview has no request with a uid")
	}
	return review, 0, nil
}

// refuse sets a response that denies the request.
func refuse(response *admissionv1.AdmissionResponse, reason error) {
	response.Allowed = false
	response.Result = &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: reason.Error(),
	}
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
