package kube

import (
	"sync"

	"k8s.io/client-go/rest"
)

// miscellaneousWarning is the code of the warnings of API servers, 299 of RFC 7234.
const miscellaneousWarning = 299

// maxWarnings bounds the remembered warnings; further ones are dropped.
const maxWarnings = 1000

// warnings passes on each warning of an API server once.
type warnings struct {
	warn func(string)

	mu    sync.Mutex
	known map[string]bool
}

var _ rest.WarningHandler = (*warnings)(nil)

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(code int, _, text string) {
	if code != miscellaneousWarning || text == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known[text] || len(w.known) >= maxWarnings {
		return
	}
	w.known[text] = true
	w.warn(text)
}
