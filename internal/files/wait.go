package files

import (
	"context"
	"io"
)

// Wait calls f and returns its results, or the error of ctx if ctx ends first. It is
// for calls that cannot be interrupted, such as reading from a terminal or opening a
// named pipe without a writer. f then goes on in the background, so it must not
// write to anything that the caller uses.
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

// Until returns a reader of r whose Read returns the error of ctx once ctx ends. Only
// one goroutine may use it at a time.
func Until(ctx context.Context, r io.Reader) io.Reader { return &untilReader{ctx: ctx, r: r} }

type untilReader struct {
	ctx context.Context
	r   io.Reader
	buf []byte // belongs to the last Read, which may still run in the background
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
