package relay

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Counts are the numbers of events since the start of a relay.
type Counts struct {
	// Requests of proxies, and Responses of the control plane.
	Requests, Responses uint64
	// Failures are the streams to the control plane that did not open.
	Failures uint64
	// Terminations are the streams to the control plane that ended after they had opened, and
	// ProxyTerminations the streams of proxies that ended.
	Terminations, ProxyTerminations Ends
}

// Ends are the numbers of streams that ended in order, and with an error.
type Ends struct{ Cancelled, Error uint64 }

type counters struct {
	requests, responses, failures   atomic.Uint64
	terminations, proxyTerminations ends
}

type ends struct{ cancelled, failed atomic.Uint64 }

// add counts the end of a stream. As with Istio's agent, a peer that closes its connection ends its
// streams in order.
func (e *ends) add(err error) {
	inOrder := err == nil || errors.Is(err, io.EOF)
	switch s := status.Convert(err); s.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		inOrder = true
	case codes.Unavailable:
		inOrder = strings.Contains(s.Message(), "error reading from server: EOF") || strings.Contains(s.Message(), "code: NO_ERROR")
	}
	if inOrder {
		e.cancelled.Add(1)
	} else {
		e.failed.Add(1)
	}
}

func (e *ends) count() Ends { return Ends{e.cancelled.Load(), e.failed.Load()} }

// Counts returns the present numbers. It may be called at any time.
func (r *Relay) Counts() Counts {
	c := &r.counters
	return Counts{c.requests.Load(), c.responses.Load(), c.failures.Load(), c.terminations.count(), c.proxyTerminations.count()}
}
