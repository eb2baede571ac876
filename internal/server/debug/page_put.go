package debug

import (
	"io"
	"net/http"
)

// Change sets a page to a text. The caller reads its error.
type Change func(text string) error

// maxChange bounds the text, in bytes.
const maxChange = 4 << 10

// mayChange reports whether the caller has the token of this machine or is an
// identity of the system namespace. Identities of Namespaces only read.
func (p *Pages) mayChange(c Rights) bool {
	return c.operator() || c.All && c.Namespace == p.cfg.SystemNamespace
}

// change handles PUT: the body is the new text of the page. No web site can make a
// browser send it, as a token is needed.
func (p *Pages) change(r *http.Request, a HTTPConfig, name string) error {
	rights, err := a.judge(r, p)
	if err != nil {
		return err
	}
	change, ok := p.cfg.Changes[name]
	switch {
	case !p.mayChange(rights):
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
