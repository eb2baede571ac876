package kube

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// network is a connection to a server that loses all data while it is broken.
type network struct {
	net.Listener
	to     string
	broken atomic.Bool
	conns  sync.WaitGroup
}

func newNetwork(t *testing.T, to string) *network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{Listener: l, to: to}
	n.conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.conns.Go(func() { n.pass(t, conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); n.conns.Wait() })
	return n
}

func (n *network) pass(t *testing.T, conn net.Conn) {
	defer conn.Close()
	server, err := net.Dial("tcp", n.to)
	if err != nil {
		t.Error(err)
		return
	}
	copying := func(to, from net.Conn) {
		defer to.Close()
		buf := make([]byte, 16<<10)
		for {
			count, err := from.Read(buf)
			if err != nil {
				return
			}
			if n.broken.Load() {
				continue
			}
			if _, err := to.Write(buf[:count]); err != nil {
				return
			}
		}
	}
	var back sync.WaitGroup
	back.Go(func() { copying(conn, server) })
	copying(server, conn)
	back.Wait()
}

// TestSilentServer: pings detect an API server that accepts connections and sends
// nothing. The objects stay, and all resources are followed again when it recovers.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	a := &api{path: "/api/v1/services", list: says(services("5", "", service("stays", "4")))}
	a.Server = httptest.NewUnstartedServer(a)
	a.EnableHTTP2 = true
	a.StartTLS()
	t.Cleanup(a.Close)
	way := newNetwork(t, a.Listener.Addr().String())
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	transport, err := dial.Guard{Loopback: true}.Transport(dial.ServerTLS{Roots: roots}, nil, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s, r, stop := run(t, &rest.Config{Host: "https://" + way.Addr().String(), Transport: transport}, func(s *Source) {
		smallLimits(s)
		s.waits.answer, s.waits.slow, s.waits.list = time.Minute, time.Minute, time.Minute // these are not what finds out
	})
	r.until("everything", func() bool { return r.synced == 1 })
	way.broken.Store(true)
	r.until("fault", func() bool { st := s.Status(); return len(st.Errors()) > 0 })
	st := s.Status()
	if text := strings.Join(st.Errors(), "\n"); !strings.Contains(text, "timeout: the API server is silent") {
		t.Errorf("%s, want that the API server is silent", text)
	}
	if r.now(snapshot.KindService, "ns", "stays") == nil {
		t.Error("what was read is gone")
	}
	way.broken.Store(false)
	r.until("recovery", func() bool { st := s.Status(); return len(st.Errors()) == 0 })
	stop()
	if _, removed := r.handed(); len(removed) > 0 {
		t.Errorf("removed %v", removed)
	}
}

// TestSlowAnswer: a slow response is reported while it is pending.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	a := newAPI(t, "/api/v1/services", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		answer(w, services("5", "", service("late", "4")))
	})
	s, r, _ := run(t, a.config(), func(s *Source) {
		smallLimits(s)
		s.waits.answer, s.waits.list, s.waits.slow = time.Minute, time.Minute, 10*time.Millisecond
	})
	r.until("told", func() bool { return s.resource("services").Error != "" })
	if got := s.resource("services"); got.Cause != CauseTimeout || !strings.Contains(got.Error, "has not answered yet") {
		t.Errorf("services: %+v", got)
	}
	close(release)
	r.until("everything", func() bool { return r.synced == 1 && s.resource("services").Error == "" })
}

// TestAgain: a follower in backoff retries as soon as another resource recovers.
func TestAgain(t *testing.T) {
	t.Parallel()
	var well atomic.Bool
	a := newAPI(t, "/api/v1/services", says(services("5", "", service("s", "4"))))
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !well.Load() {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		a.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	_, r, _ := run(t, &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}, func(s *Source) {
		s.Configuration, s.SecretNamespaces = false, nil
		s.waits = waits{retry: time.Hour, maxRetry: time.Hour}
		followers := int64(0)
		for _, res := range source.Watched() {
			if res.Use == source.ForMesh {
				followers++
			}
		}
		var pausing atomic.Int64
		s.Jitter = func() float64 { // the last to pause has a short one, all others an hour
			if pausing.Add(1) != followers {
				return 1
			}
			well.Store(true)
			return -0.9999
		}
	})
	r.until("everything", func() bool { return r.synced == 1 })
}
