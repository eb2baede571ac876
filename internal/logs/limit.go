package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Each message may be logged burst times at once, then perSecond times a second.
const (
	burst     = 200
	perSecond = 20
)

// maxMessages bounds the messages that Limit remembers. Messages are constants of
// the program, which has fewer.
const maxMessages = 1000

// Limit returns a handler that passes a limited number of lines of each message to
// next and drops the others, so that the mistakes of peers cannot fill a disk. The
// first line after dropped ones has their number as the attribute "left_out".
func Limit(next slog.Handler, now func() time.Time) slog.Handler {
	return limitHandler{next, &limits{now: now, messages: make(map[string]*messageLimit)}}
}

type limits struct {
	now func() time.Time

	mu       sync.Mutex
	messages map[string]*messageLimit
}

type messageLimit struct {
	*rate.Limiter
	leftOut int // since the last line that was logged
}

// allow reports whether a line may be logged, and how many lines of its message
// were dropped before it.
func (l *limits) allow(message string) (leftOut int, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.messages[message]
	if m == nil {
		if len(l.messages) >= maxMessages {
			clear(l.messages)
		}
		m = &messageLimit{Limiter: rate.NewLimiter(perSecond, burst)}
		l.messages[message] = m
	}
	if !m.AllowN(now, 1) {
		m.leftOut++
		return 0, false
	}
	leftOut, m.leftOut = m.leftOut, 0
	return leftOut, true
}

type limitHandler struct {
	slog.Handler
	*limits
}

func (h limitHandler) Handle(ctx context.Context, r slog.Record) error {
	leftOut, ok := h.allow(r.Message)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return h.Handler.Handle(ctx, r)
}

func (h limitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limitHandler{h.Handler.WithAttrs(attrs), h.limits}
}

func (h limitHandler) WithGroup(name string) slog.Handler {
	return limitHandler{h.Handler.WithGroup(name), h.limits}
}
