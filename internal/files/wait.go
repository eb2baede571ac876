package files

import (
	"context"
	"io"
)

// Wait returns what f does, or why ctx ended if that comes first. It is for what
// cannot be interrupted, such as a read from a terminal, or opening a named pipe
// that nobody writes to. f then goes on until it returns or the program ends, and
// must not write to what the caller goes on to use.
func Wait[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// Until reads from r until ctx ends: a Read that waits then returns why. It is for
// one goroutine at a time.
func Until(ctx context.Context, r io.Reader) io.Reader { return &untilReader{ctx: ctx, r: r} }

type untilReader struct {
	ctx context.Context
	r   io.Reader
	buf []byte // is left to a read that was given up
}

// Read implements io.Reader.
func (u *untilReader) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	if len(u.buf) < len(p) {
		u.buf = make([]byte, len(p))
	}
	buf := u.buf[:len(p)]
	n, err := Wait(u.ctx, func() (int, error) { return u.r.Read(buf) })
	return copy(p, buf[:n]), err
}
