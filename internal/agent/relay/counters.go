package relay

import "sync/atomic"

// Counts are the numbers of events since the start of a relay.
type Counts struct {
	// Requests of proxies, and Responses of the control plane.
	Requests, Responses uint64
	// Failures are the streams to the control plane that did not open, and Terminations
	// those that ended after they had opened.
	Failures, Terminations uint64
	// ProxyTerminations are the streams of proxies that ended.
	ProxyTerminations uint64
}

type counters struct{ requests, responses, failures, terminations, proxyTerminations atomic.Uint64 }

// Counts returns the present numbers. It may be called at any time.
func (r *Relay) Counts() Counts {
	c := &r.counters
	return Counts{c.requests.Load(), c.responses.Load(), c.failures.Load(), c.terminations.Load(), c.proxyTerminations.Load()}
}
