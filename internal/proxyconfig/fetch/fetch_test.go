package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// read returns what the source gives.
func read(t *testing.T, s Source, request Request) (string, error) {
	t.Helper()
	if s.Timeout == 0 {
		s.Timeout = time.Minute
	}
	if s.MaxSize == 0 {
		s.MaxSize = 1 << 20
	}
	var text []byte
	err := s.Read(t.Context(), request, func(r io.Reader) (err error) {
		text, err = io.ReadAll(r)
		return err
	})
	return string(text), err
}

func respond(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Error(err)
	}
}

func admin(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	server := admin(t, func(w http.ResponseWriter, r *http.Request) {
		respond(t, w, r.Method+" "+r.URL.String())
	})
	hostPort := strings.TrimPrefix(server.URL, "http://")
	for _, address := range []string{hostPort, "http://" + hostPort, "http://" + hostPort + "/"} {
		for _, request := range []Request{Endpoints, Clusters, Listeners, Routes, Secrets, Extensions, Assignments, Bootstrap, All} {
			got, err := read(t, Source{Admin: address}, request)
			if want := "GET " + string(request); err != nil || got != want {
				t.Errorf("%s: %q, %v, want %q", address, got, err, want)
			}
		}
	}
}

func TestAdminErrors(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	notEnvoy := admin(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such page"+strings.Repeat("!", 10_000), http.StatusNotFound)
	})
	elsewhere := admin(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.com/", http.StatusFound)
	})
	cut := admin(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		respond(t, w, "half")
	})
	tests := map[string]struct {
		admin string
		want  string
	}{
		"nobody listens": {closed.Addr().String(), "connection refused"},
		"not Envoy":      {notEnvoy.URL, "is that the port of Envoy's admin interface?"},
		"redirect":       {elsewhere.URL, "redirected to http://example.com/"},
		"cut":            {cut.URL, "unexpected EOF"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := read(t, Source{Admin: tc.admin}, Clusters)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.admin) {
				t.Errorf("error %v, want one with %q and %q", err, tc.want, tc.admin)
			}
			if err != nil && len(err.Error()) > 600 {
				t.Errorf("error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestNothingToMask: Envoy refuses a mask for an empty section, which is no error.
func TestNothingToMask(t *testing.T) {
	t.Parallel()
	server := admin(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "FieldMask dynamic_route_configs,static_route_configs could not be successfully applied to any configs.", http.StatusBadRequest)
	})
	if got, err := read(t, Source{Admin: server.URL}, Routes); err != nil || got != "{}" {
		t.Errorf("got %q, %v, want an empty dump", got, err)
	}
}

// TestAdminTimeout: an Envoy that stops before or in the middle of its response is
// reported as late, not as wrong.
func TestAdminTimeout(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{"before": "", "middle": "half"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			server := admin(t, func(w http.ResponseWriter, _ *http.Request) {
				if begin != "" {
					respond(t, w, begin)
					w.(http.Flusher).Flush()
				}
				<-release
			})
			defer close(release)
			s := Source{Admin: server.URL, Timeout: 50 * time.Millisecond, MaxSize: 1 << 20}
			err := s.Read(t.Context(), Clusters, func(r io.Reader) error {
				_, err := io.ReadAll(r)
				return fmt.Errorf("not valid JSON: %w", err)
			})
			want := "admin interface " + server.URL + ": no whole answer within --timeout 50ms"
			if !errors.Is(err, context.DeadlineExceeded) || strings.TrimPrefix(err.Error(), "ask Envoy's ") != want {
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}

// TestReadError: the error of reading wins over the error of the parser.
func TestReadError(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	s := Source{File: "-", Stdin: iotest.ErrReader(broken), MaxSize: 1 << 20}
	err := s.Read(t.Context(), Clusters, func(r io.Reader) error {
		_, err := io.ReadAll(r)
		return fmt.Errorf("not valid JSON: %w", err)
	})
	if want := "standard input: disk on fire"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestCanceled(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	server := admin(t, func(http.ResponseWriter, *http.Request) {
		cancel()
		<-release
	})
	defer close(release)
	s := Source{Admin: server.URL, Timeout: time.Minute, MaxSize: 1}
	if err := s.Read(ctx, Clusters, func(io.Reader) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(path, []byte("12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, Source{File: path}, Clusters); err != nil || got != "12345678" {
		t.Errorf("file: %q, %v", got, err)
	}
	if got, err := read(t, Source{File: "-", Stdin: strings.NewReader("in")}, Clusters); err != nil || got != "in" {
		t.Errorf("standard input: %q, %v", got, err)
	}
	if _, err := read(t, Source{File: path + "x"}, Clusters); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: error %v", err)
	}
	if got, err := read(t, Source{File: path, MaxSize: 8}, Clusters); err != nil || got != "12345678" {
		t.Errorf("file of exactly the largest size: %q, %v", got, err)
	}
	_, err := read(t, Source{File: path, MaxSize: 7}, Clusters)
	if err == nil || !strings.HasPrefix(err.Error(), path+": the dump has more than ") {
		t.Errorf("file that is too large: error %v", err)
	}
	// The parser may take the end for a fault of the dump.
	s := Source{File: path, MaxSize: 7}
	err = s.Read(t.Context(), Clusters, func(r io.Reader) error {
		_, err := io.ReadAll(r)
		return fmt.Errorf("not valid JSON: %w", err)
	})
	if want := path + ": the dump has more than 0 MiB; --max-size allows more"; err == nil || err.Error() != want {
		t.Errorf("file that is too large, and its reader fails: error %v, want %s", err, want)
	}
	_, err = read(t, Source{File: path, MaxSize: 7, FixedSize: true}, Clusters)
	if want := path + ": the answer has more than 0 MiB: is that the port of Envoy's admin interface?"; err == nil || err.Error() != want {
		t.Errorf("what is too large and may not be larger: error %v, want %s", err, want)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, good := range []Source{
		{File: "-"}, {File: "x"}, {Admin: "127.0.0.1:15000"}, {Admin: "localhost:1"}, {Admin: "[::1]:15000"}, {Admin: "http://127.0.0.1:15000/"},
	} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []Source{
		{},
		{File: "x", Admin: "127.0.0.1:15000"},
		{Admin: "127.0.0.1"},
		{Admin: ":15000"},
		{Admin: "https://127.0.0.1:15000"},
		{Admin: "127.0.0.1:15000/quitquitquit?"},
		{Admin: "user@127.0.0.1:15000"},
	} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// TestEndsWithContext: Read fails when ctx ends, while it reads a file and after.
func TestEndsWithContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, after := range map[string]int64{"at once": 1, "at the end": 1 << 20} {
		ctx, cancel := context.WithCancel(t.Context())
		s := Source{File: path, MaxSize: 2 << 20}
		var got int64
		err := s.Read(ctx, Everything, func(r io.Reader) error {
			n, err := io.CopyN(io.Discard, r, after)
			cancel()
			if err != nil {
				return err
			}
			rest, err := io.Copy(io.Discard, r)
			got = n + rest
			if after == 1<<20 { // a reader that has all it needs does not fail
				return nil
			}
			return err
		})
		if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), path+": ") || name == "at once" && got == 1<<20 {
			t.Errorf("%s: %d bytes were read, error %v", name, got, err)
		}
	}
}

// TestFileEncodings: a saved dump may begin with a byte order mark, in UTF-8 or UTF-16.
func TestFileEncodings(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"UTF-8": "{}", "UTF-8 with a mark": "\ufeff{}", "UTF-16, little end first": "\xff\xfe{\x00}\x00", "UTF-16, big end first": "\xfe\xff\x00{\x00}",
	} {
		path := filepath.Join(t.TempDir(), "dump.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := read(t, Source{File: path, MaxSize: 100}, Everything)
		if err != nil || got != "{}" {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		got, err = read(t, Source{File: "-", Stdin: strings.NewReader(text), MaxSize: 100}, Everything)
		if err != nil || got != "{}" {
			t.Errorf("%s, standard input: got %q, %v", name, got, err)
		}
	}
}
