package pccmd

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

// TestProxyConfigLogAtOnce: a silent Envoy does not delay the next ones, the number of
// concurrent requests is bounded, and results keep their order.
func TestProxyConfigLogAtOnce(t *testing.T) {
	t.Parallel()
	const envoys = 3 * loggersAtOnce
	var now, most atomic.Int64
	var once sync.Once
	atBound := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if n == loggersAtOnce {
			once.Do(func() { close(atBound) })
		}
		select {
		case <-atBound:
		case <-t.Context().Done():
		}
		fmt.Fprintln(w, "active loggers:\n  http: info")
	}))
	defer server.Close()
	var sources []namedSource
	var want, got []string
	for i := range envoys {
		name := fmt.Sprint("web-", i)
		sources = append(sources, namedSource{name, &fetch.Source{Admin: server.URL, Timeout: time.Minute, MaxSize: maxLoggers}})
		want = append(want, name+" info <nil>")
	}
	err := new(pcLogOptions).askAll(t.Context(), sources, nil, func(name string, loggers map[string]string, err error) error {
		got = append(got, fmt.Sprint(name, " ", loggers["http"], " ", err))
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if n := most.Load(); n != loggersAtOnce {
		t.Errorf("%d Envoys were asked at a time, want %d", n, loggersAtOnce)
	}
}
