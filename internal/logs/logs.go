// Package logs decides which lines are logged: from which level on, by areas that
// can be changed while a program runs, and how often, so that peers cannot fill a
// disk by making mistakes.
package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/bucket"
)

// Of each message this many lines are logged at once, and this many more a
// second.
const (
	burst  = 200
	refill = 20
)

func perMessage() bucket.Limit { return bucket.Limit{PerSecond: refill, Burst: burst} }

// maxMessages bounds what is remembered. Messages are constants of the
// program, of which there are fewer.
const maxMessages = 1000

// Limit hands on to next so many lines of each message and no more. The next
// line after some that were left out tells how many, as the attribute
// "left_out".
func Limit(next slog.Handler, now func() time.Time) slog.Handler {
	return handler{next, &state{now: now, messages: make(map[string]*allowance)}}
}

type state struct {
	now func() time.Time

	mu       sync.Mutex
	messages map[string]*allowance
}

// allowance is what may be logged of one message.
type allowance struct {
	lines   bucket.Bucket
	leftOut int
}

// take reports whether a line may be logged, and how many were left out since
// the last one that was.
func (s *state) take(message string) (leftOut int, ok bool) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.messages[message]
	if a == nil {
		if len(s.messages) >= maxMessages {
			clear(s.messages)
		}
		a = &allowance{lines: perMessage().Full(now)}
		s.messages[message] = a
	}
	if a.lines, ok = perMessage().Take(a.lines, now); !ok {
		a.leftOut++
		return 0, false
	}
	leftOut, a.leftOut = a.leftOut, 0
	return leftOut, true
}

type handler struct {
	slog.Handler
	*state
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	leftOut, ok := h.take(r.Message)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.state}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.state}
}
