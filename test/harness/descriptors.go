package harness

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
)

// Starve leaves the process without a free file descriptor until the test ends
// or the returned function is called. The test must not be parallel.
func Starve(t testing.TB) (feed func()) {
	t.Helper()
	t.Setenv("MESHCTL_TEST_STARVED", "1") // panics in a parallel test
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = min(limit.Cur, 256)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	feed = sync.OnceFunc(func() {
		for _, f := range held {
			_ = f.Close()
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(feed)
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			return feed
		}
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, f)
	}
}
