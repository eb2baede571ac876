package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// soon is the timeout of checks that have to run into it.
const soon = 50 * time.Millisecond

func want(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// nobody returns an address that no socket listens on.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	check(t, l.Close())
	return l.Addr().String()
}

// silent is an address where connections are not answered.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	return l.Addr().String()
}

func briefly(t *testing.T, run func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return run(ctx)
}

func TestHTTP(t *testing.T) {
	status, got := http.StatusOK, (*http.Request)(nil)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		if status == http.StatusFound {
			w.Header().Set("Location", "http://203.0.113.1/")
		}
		w.WriteHeader(status)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	at := func(base, path string) url.URL {
		u, err := url.Parse(base + path)
		check(t, err)
		return *u
	}
	for code, problem := range map[int]string{200: "", 204: "", 302: "", 304: "", 399: "", 400: "status 400", 503: "status 503, want 200 to 399"} {
		status = code
		want(t, HTTP(at(plain.URL, "/ready"), nil)(t.Context()), problem)
	}
	status = 200
	want(t, HTTP(at(secure.URL, "/"), nil)(t.Context()), "")
	want(t, HTTP(at(plain.URL, "/ready?all=1"), http.Header{"Host": {"app.test"}, "X-Key": {"a", "b"}})(t.Context()), "")
	if got.Method != "GET" || got.URL.String() != "/ready?all=1" || got.Host != "app.test" || len(got.Header["X-Key"]) != 2 || got.UserAgent() != userAgent {
		t.Errorf("asked %s %s of %s with %v", got.Method, got.URL, got.Host, got.Header)
	}
	want(t, HTTP(at(plain.URL, "/"), http.Header{"User-Agent": {"mine"}})(t.Context()), "")
	if got.UserAgent() != "mine" {
		t.Errorf("user agent %q", got.UserAgent())
	}
	closed := nobody(t)
	err := HTTP(at("http://"+closed, "/ready?key=secret"), nil)(t.Context())
	want(t, err, "GET http://"+closed+"/ready: dial tcp")
	want(t, err, "connection refused")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the query is told: %v", err)
	}
	want(t, briefly(t, HTTP(at("http://"+silent(t), "/"), nil)), "no answer in time")
}

func TestTCP(t *testing.T) {
	want(t, TCP(silent(t))(t.Context()), "")
	want(t, TCP(nobody(t))(t.Context()), "connection refused")
}

func TestExec(t *testing.T) {
	want(t, Exec([]string{"true"}, nil)(t.Context()), "")
	want(t, Exec([]string{"sh", "-c", "exit 3"}, nil)(t.Context()), "run sh: exit status 3")
	want(t, Exec([]string{"/no/program"}, nil)(t.Context()), "run /no/program: ")
	want(t, Exec([]string{"sh", "-c", `test "$A" = b`}, []string{"A=b"})(t.Context()), "")
	want(t, briefly(t, Exec([]string{"sleep", "1000"}, nil)), "run sleep: no answer in time")
}

// TestExecEndsChildren: what a command started ends with it.
func TestExecEndsChildren(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	check(t, syscall.Mkfifo(fifo, 0o600))
	held := func() bool { // whether anybody reads it
		f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, syscall.ENXIO) {
			return false
		}
		check(t, err)
		check(t, f.Close())
		return true
	}
	until := func(is bool) {
		t.Helper()
		for began := time.Now(); held() != is; time.Sleep(time.Millisecond) {
			if time.Since(began) > 30*time.Second {
				t.Fatalf("the child lives: %v, want %v", !is, is)
			}
		}
	}
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Exec([]string{"sh", "-c", "sleep 1000 3<>" + fifo + " & wait"}, nil)(ctx) }()
	until(true)
	kill()
	want(t, <-ended, "signal: killed")
	until(false)
}

func TestGRPC(t *testing.T) {
	serve := func(register func(*grpc.Server)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		s := grpc.NewServer()
		register(s)
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(l) }()
		t.Cleanup(func() { s.Stop(); check(t, <-ended) })
		return l.Addr().String()
	}
	h := health.NewServer()
	h.SetServingStatus("ledger", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	address := serve(func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, h) })
	want(t, GRPC(address, "")(t.Context()), "")
	want(t, GRPC(address, "ledger")(t.Context()), `gRPC health of "ledger" at `+address+": NOT_SERVING")
	want(t, GRPC(address, "other")(t.Context()), "NotFound")
	want(t, GRPC(serve(func(*grpc.Server) {}), "")(t.Context()), "does not implement grpc.health.v1.Health")
	want(t, GRPC(nobody(t), "")(t.Context()), "connection refused")
	want(t, briefly(t, GRPC(silent(t), "")), "no answer in time")
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
