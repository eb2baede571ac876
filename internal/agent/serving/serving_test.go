package serving

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUntil(t *testing.T) {
	t.Parallel()
	ended := errors.New("ended")
	ctx, end := context.WithCancel(t.Context())
	served, stops := make(chan struct{}), 0
	err := Until(ctx, func() error {
		end()
		<-served
		return ended
	}, func() {
		close(served) // serve may end before stop does, which is waited for
		stops++
	})
	if err != nil || stops != 1 {
		t.Errorf("after the context: %v, stopped %d times, want nil, once", err, stops)
	}
	stop := func() { t.Error("a server that has ended is stopped") }
	if err := Until(t.Context(), func() error { return ended }, stop); !errors.Is(err, ended) {
		t.Errorf("a server that ends by itself: %v, want %v", err, ended)
	}
}
