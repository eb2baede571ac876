package debug

import (
	"io"
	"net/http"
)

// Change takes the text that a page is to be set to. Its error is for the caller.
type Change func(text string) error

// maxChange bounds such a text, in bytes.
const maxChange = 4 << 10

// mayChange says who may change something: callers with the token of this machine,
// and identities of the system namespace. Those of other namespaces only look.
func (p *Pages) mayChange(c Caller) bool {
	return c.operator() || c.All && c.Namespace == p.cfg.SystemNamespace
}

// change answers PUT: the body is what the page is to be set to, the answer is the
// page then. A web page cannot make a browser ask this of its own accord, as it has
// no token.
func (p *Pages) change(r *http.Request, a Access, name string) error {
	caller, err := a.judge(r, p)
	if err != nil {
		return err
	}
	change, ok := p.cfg.Changes[name]
	switch {
	case !p.mayChange(caller):
		return &Error{http.StatusForbidden, "only the user of the control plane and identities of the system namespace may change something"}
	case !ok:
		return &Error{http.StatusMethodNotAllowed, "this page only shows something"}
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxChange+1))
	switch {
	case err != nil:
		return &Error{http.StatusBadRequest, "the request was not received whole"}
	case len(text) > maxChange:
		return &Error{http.StatusRequestEntityTooLarge, "the text is too long"}
	}
	if err := change(string(text)); err != nil {
		return &Error{http.StatusBadRequest, err.Error()}
	}
	return nil
}
