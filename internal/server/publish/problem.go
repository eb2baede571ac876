package publish

import "sync"

// problem is the reason why the last check of a writer failed.
type problem struct {
	mu   sync.Mutex
	text string
}

// Problem returns the reason why the last check failed, or "".
func (p *problem) Problem() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

// set sets the reason, empty for none. It reports whether the checks began to fail, which is to be
// logged.
func (p *problem) set(text string) (began bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began = text != "" && p.text == ""
	p.text = text
	return began
}
