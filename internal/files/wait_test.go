package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestUntil(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("0123456789"), 1000)
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(text), "in pieces": iotest.HalfReader(bytes.NewReader(text)), "end with data": iotest.DataErrReader(bytes.NewReader(text))} {
		if got, err := io.ReadAll(Until(t.Context(), r)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	broken := errors.New("broken")
	if _, err := io.ReadAll(Until(t.Context(), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}

	in, out := io.Pipe()
	defer func() { _ = out.Close() }() // ends the read that was given up
	ctx, end := context.WithCancel(t.Context())
	r := Until(ctx, in)
	go func() { _, _ = out.Write([]byte("x")) }()
	if n, err := r.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("before the end of the context: %d, %v", n, err)
	}
	go end()
	if got, err := io.ReadAll(r); len(got) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("until the context ends: %q, %v", got, err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("after it: %d, %v", n, err)
	}
}
