package serving

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestUntil: Until stops the server when the context ends, and returns an earlier error.
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
		close(served) // Until must wait for stop even if serve ends first
		stops++
	})
	if err != nil || stops != 1 {
		t.Errorf("after the context: %v, stopped %d times, want nil, once", err, stops)
	}
	stop := func() { t.Error("stop was called for a server that had ended") }
	if err := Until(t.Context(), func() error { return ended }, stop); !errors.Is(err, ended) {
		t.Errorf("a server that ends by itself: %v, want %v", err, ended)
	}
}

// TestHTTP: a request that ends within the grace period gets its response, and another
// one is cut off.
func TestHTTP(t *testing.T) {
	t.Parallel()
	for name, patient := range map[string]bool{"ends by itself": true, "is cut off": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			asked, stopped := make(chan struct{}), make(chan struct{})
			srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(asked)
				if patient {
					<-stopped
					_, _ = io.WriteString(w, "whole")
				} else {
					<-r.Context().Done()
				}
			})}
			srv.RegisterOnShutdown(func() { close(stopped) })
			ctx, end := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- HTTP(ctx, srv, l) }()
			go func() { <-asked; end() }()
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			var body []byte
			resp, err := client.Get("http://" + l.Addr().String())
			if err == nil {
				body, err = io.ReadAll(resp.Body)
				err = errors.Join(err, resp.Body.Close())
			}
			if patient != (err == nil) || patient && string(body) != "whole" {
				t.Errorf("the request: %q, %v", body, err)
			}
			if err := <-served; err != nil {
				t.Errorf("after the context: %v", err)
			}
			if err := HTTP(t.Context(), &http.Server{ReadHeaderTimeout: time.Minute}, l); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a server that ends by itself: %v", err)
			}
		})
	}
}
