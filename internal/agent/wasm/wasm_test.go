package wasm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"), // connections of http.DefaultTransport
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"))
}

const deadline = 2 * time.Minute

var module = []byte(Magic + "\x01\x00\x00\x00")

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func packed(t testing.TB, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, n := range names {
		header := &tar.Header{Name: n, Mode: 0o600, Size: int64(len(module))}
		if to, isLink := strings.CutPrefix(n, "link:"); isLink {
			header = &tar.Header{Name: to, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}
		}
		check(t, archive.WriteHeader(header))
		if header.Size > 0 {
			_, err := archive.Write(module)
			check(t, err)
		}
	}
	check(t, archive.Close())
	return out.Bytes()
}

func compressed(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	check(t, err)
	check(t, z.Close())
	return out.Bytes()
}

// lying returns an archive whose header claims a size that its content does not have.
func lying(t testing.TB) []byte {
	t.Helper()
	b := packed(t, "plugin.wasm")
	copy(b[124:136], "77777777777\x00")
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b[:1536]
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	bomb := compressed(t, append(bytes.Clone(module), make([]byte, maxModule)...))
	for name, tc := range map[string]struct {
		in   []byte
		want string // of the error
	}{
		"module":           {module, ""},
		"compressed":       {compressed(t, module), ""},
		"archive":          {packed(t, "README", "dir/plugin.wasm"), ""},
		"tar.gz":           {compressed(t, packed(t, "plugin.wasm")), ""},
		"no module":        {packed(t, "README"), "has no WebAssembly module"},
		"link":             {packed(t, "link:plugin.wasm"), "has no WebAssembly module"},
		"name outside":     {packed(t, "../../plugin.wasm"), ""}, // names are never used
		"size that lies":   {lying(t), "unexpected EOF"},
		"bomb":             {bomb, "the module is too large"},
		"other file":       {[]byte("#!/bin/sh"), "neither a WebAssembly module nor"},
		"nothing":          {nil, "neither a WebAssembly module nor"},
		"broken gzip":      {[]byte("\x1f\x8b\x00"), "decompress"},
		"truncated":        {compressed(t, module)[:12], "nor a tar archive"},
		"archive in tar":   {packed(t, strings.Repeat("a", 90)), "has no WebAssembly module"},
		"too many entries": {packed(t, make([]string, 0)...), "nor a tar archive"},
	} {
		var out bytes.Buffer
		err := unpack(&out, bytes.NewReader(tc.in), isPlugin)
		if tc.want == "" && (err != nil || !bytes.Equal(out.Bytes(), module)) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: error %v, %d bytes; want %q", name, err, out.Len(), tc.want)
		}
	}
	names := make([]string, maxFiles)
	for i := range names {
		names[i] = "a"
	}
	if err := unpack(io.Discard, bytes.NewReader(packed(t, append(names, "plugin.wasm")...)), isPlugin); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("many files: %v", err)
	}
}

// FuzzUnpack: unpack writes a module within its bound or reports an error, for any bytes.
func FuzzUnpack(f *testing.F) {
	for _, b := range [][]byte{module, compressed(f, module), packed(f, "a", "plugin.wasm"), compressed(f, packed(f, "plugin.wasm")), lying(f)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		if err := unpack(&out, bytes.NewReader(b), isPlugin); err == nil && !bytes.HasPrefix(out.Bytes(), []byte(Magic)) || out.Len() > maxModule {
			t.Errorf("%v, %d bytes that are no module", err, out.Len())
		}
	})
}

// newStore runs a store that may ask these servers.
func newStore(t *testing.T, change func(*Config), servers ...*httptest.Server) *Store {
	t.Helper()
	c := Config{Dir: filepath.Join(t.TempDir(), "wasm"), Timeout: deadline, Expiry: time.Hour, Purge: time.Hour, Now: time.Now}
	for _, s := range servers {
		_, host, _ := strings.Cut(s.URL, "://")
		c.Insecure = append(c.Insecure, host)
	}
	if change != nil {
		change(&c)
	}
	s, err := New(t.Context(), c)
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		check(t, <-ended)
		if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
			t.Errorf("the directory stays: %v", err)
		}
	})
	return s
}

func use(t *testing.T, s *Store, m Module) (path string, release func()) {
	t.Helper()
	path, release, err := s.Use(t.Context(), m)
	check(t, err)
	return path, release
}

// refuses expects an error that contains want.
func refuses(t *testing.T, s *Store, m Module, want string) {
	t.Helper()
	if _, _, err := s.Use(t.Context(), m); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want %q", m.URL, err, want)
	}
	left, err := os.ReadDir(s.Dir)
	check(t, err)
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "new-") {
			t.Errorf("%s: the file %s stays", m.URL, f.Name())
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	archive := compressed(t, packed(t, "a.wasm"))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		switch r.URL.Path {
		case "/module", "/same":
			_, _ = w.Write(module)
		case "/archive":
			_, _ = w.Write(archive)
		case "/other":
			http.Redirect(w, r, "/module", http.StatusFound)
		case "/metadata":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/large":
			_, _ = w.Write(module)
			for range maxModule >> 20 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s := newStore(t, nil, server)
	var tasks sync.WaitGroup
	for range 10 { // at the same time
		tasks.Go(func() {
			_, release := use(t, s, Module{URL: server.URL + "/module", SHA256: strings.ToUpper(sumOf(module))})
			release()
		})
	}
	tasks.Wait()
	path, release := use(t, s, Module{URL: server.URL + "/module", SHA256: strings.ToUpper(sumOf(module))})
	defer release()
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests for one module", n)
	}
	text, err := os.ReadFile(path)
	check(t, err)
	info, err := os.Stat(path)
	check(t, err)
	dir, err := os.Stat(s.Dir)
	check(t, err)
	if !bytes.Equal(text, module) || info.Mode() != 0o600 || dir.Mode().Perm() != 0o700 {
		t.Errorf("%q with mode %s in a directory with mode %s", text, info.Mode(), dir.Mode())
	}
	if again, release := use(t, s, Module{URL: server.URL + "/module", Version: "2"}); again != path || requests.Load() != 2 {
		t.Errorf("another version: %s, %d requests", again, requests.Load())
	} else {
		release()
	}
	for _, sum := range []string{"", sumOf(archive), sumOf(module)} {
		_, release := use(t, s, Module{URL: server.URL + "/archive", SHA256: sum})
		release()
	}
	_, release = use(t, s, Module{URL: server.URL + "/other"})
	release()
	refuses(t, s, Module{URL: server.URL + "/module", SHA256: sumOf([]byte("x"))}, "its SHA-256 sum is "+sumOf(module))
	refuses(t, s, Module{URL: server.URL + "/none"}, "answers 404")
	refuses(t, s, Module{URL: server.URL + "/metadata"}, "metadata service")
	refuses(t, s, Module{URL: server.URL + "/loop"}, "10 redirects")
	refuses(t, s, Module{URL: server.URL + "/large"}, "larger than")
	refuses(t, s, Module{URL: "http://127.0.0.1:1/"}, "is loopback")
	refuses(t, s, Module{URL: "ftp://a/b"}, "scheme")
	refuses(t, s, Module{URL: "https://user:secret@127.0.0.1:1/" + "\x7f"}, "not valid")

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(s.Collectors()...)
	families, err := metrics.Gather()
	check(t, err)
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			counts[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"istio_agent_wasm_cache_entries":           6,
		"istio_agent_wasm_cache_lookup_count true": 10, "istio_agent_wasm_cache_lookup_count false": 14,
		"istio_agent_wasm_remote_fetch_count success": 6, "istio_agent_wasm_remote_fetch_count checksum_mismatched": 1,
		"istio_agent_wasm_remote_fetch_count download_failure": 7,
		"istio_agent_wasm_config_conversion_duration":          0,
	}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestWaitsNoLongerThanAsked(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		_, _ = w.Write(module)
	}))
	t.Cleanup(server.Close)
	s := newStore(t, nil, server)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Use(ctx, Module{URL: server.URL}); err == nil || !strings.Contains(err.Error(), "not fetched yet") {
		t.Errorf("error %v", err)
	}
	close(release)
	_, done := use(t, s, Module{URL: server.URL}) // of the same request
	done()
}

func TestKeepsModulesInUse(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(append(bytes.Clone(module), r.URL.Path...))
	}))
	t.Cleanup(server.Close)
	var now atomic.Int64
	s := newStore(t, func(c *Config) { c.Now = func() time.Time { return time.Unix(now.Load(), 0) } }, server)
	at := func(i int) Module { return Module{URL: fmt.Sprintf("%s/%d", server.URL, i)} }
	first, release := use(t, s, at(0))
	var others []func()
	for i := 1; i < maxModules; i++ {
		_, release := use(t, s, at(i))
		others = append(others, release)
	}
	refuses(t, s, at(maxModules), "fill the space")
	for _, release := range others {
		release()
	}
	_, done := use(t, s, at(maxModules))
	done()
	now.Add(2 * 3600)
	_, done = use(t, s, at(maxModules+1)) // removes what is expired
	done()
	if left, err := os.ReadDir(s.Dir); err != nil || len(left) != 2 {
		t.Errorf("%d modules stay, %v", len(left), err)
	}
	_, err := os.Stat(first)
	check(t, err)
	release()
}

// startRegistry starts a registry. With a password it demands the one of the user "u".
func startRegistry(t *testing.T, password string) (*httptest.Server, string) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, got, _ := r.BasicAuth(); got != password && r.Method != http.MethodPut && r.Method != http.MethodPost && r.Method != http.MethodPatch && r.Header.Get("X-Push") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server, strings.TrimPrefix(server.URL, "http://")
}

type pusher struct{}

func (pusher) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("X-Push", "1")
	return http.DefaultTransport.RoundTrip(r)
}

func push(t *testing.T, at string, layers ...v1.Layer) (digest string) {
	t.Helper()
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image, err := mutate.AppendLayers(image, layers...)
	check(t, err)
	ref, err := name.ParseReference(at, name.Insecure)
	check(t, err)
	check(t, remote.Write(ref, image, remote.WithTransport(pusher{})))
	sum, err := image.Digest()
	check(t, err)
	return sum.Hex
}

func TestImages(t *testing.T) {
	t.Parallel()
	server, host := startRegistry(t, "")
	s := newStore(t, nil, server)
	rootfs := func(names ...string) v1.Layer {
		return static.NewLayer(compressed(t, packed(t, names...)), types.OCILayer)
	}
	digest := push(t, host+"/compat:v1", rootfs("README"), rootfs("plugin.wasm"), rootfs("more"))
	push(t, host+"/artifact", static.NewLayer(module, moduleLayer))
	push(t, host+"/empty:v1", rootfs("README"))
	push(t, host+"/wrong:v1", static.NewLayer([]byte("#!/bin/sh"), moduleLayer))
	for _, m := range []Module{
		{URL: "oci://" + host + "/compat:v1", SHA256: digest},
		{URL: "oci://" + host + "/compat@sha256:" + digest},
		{URL: host + "/artifact"},
		{URL: "oci://" + host + "/artifact:latest", SHA256: sumOf(module)},
	} {
		path, release := use(t, s, m)
		if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, module) {
			t.Errorf("%s: %q, %v", m.URL, text, err)
		}
		release()
	}
	refuses(t, s, Module{URL: "oci://" + host + "/empty:v1"}, "neither a layer with a module nor a file plugin.wasm")
	refuses(t, s, Module{URL: "oci://" + host + "/wrong:v1"}, "is not a WebAssembly module")
	refuses(t, s, Module{URL: "oci://" + host + "/none:v1"}, "NAME_UNKNOWN")
	refuses(t, s, Module{URL: "oci://" + host + "/compat:v1", SHA256: sumOf(nil)}, "its SHA-256 sum is "+digest)
	refuses(t, s, Module{URL: "oci://" + host + "/compat@sha256:" + sumOf(nil)}, "MANIFEST_UNKNOWN")
	refuses(t, s, Module{URL: "oci://!"}, "name of the image is not valid")
	other := newStore(t, nil)
	check(t, os.MkdirAll(other.Dir, 0o700))
	refuses(t, other, Module{URL: "oci://" + host + "/compat:v1"}, "does not connect to it")
}

// TestBlockedNetworks: no module comes from a blocked network, not even from a registry that needs no
// TLS.
func TestBlockedNetworks(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(module) }))
	t.Cleanup(server.Close)
	s := newStore(t, func(c *Config) { c.Blocked = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }, server)
	refuses(t, s, Module{URL: server.URL + "/module"}, "is in a network that is refused")
}

// TestHostileRegistry: a registry whose blobs are others than the manifest says, or whose tokens
// come from a server without TLS, gets nothing and gives nothing.
func TestHostileRegistry(t *testing.T) {
	t.Parallel()
	var blob atomic.Pointer[[]byte]
	var challenges atomic.Bool
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Push") != "":
			inner.ServeHTTP(w, r)
		case challenges.Load():
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://tokens.example/token",service="x"`)
			http.Error(w, "", http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/bloated/manifests/"):
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			_, _ = w.Write(make([]byte, maxManifest+1))
		case strings.Contains(r.URL.Path, "/blobs/") && blob.Load() != nil:
			_, _ = w.Write(*blob.Load())
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	s := newStore(t, nil, server)
	push(t, host+"/fake:v1", static.NewLayer(append(bytes.Clone(module), "real"...), moduleLayer))
	fake := append(bytes.Clone(module), "fake"...)
	blob.Store(&fake)
	refuses(t, s, Module{URL: "oci://" + host + "/fake:v1"}, "error verifying")
	refuses(t, s, Module{URL: "oci://" + host + "/bloated:v1"}, "manifest of the image is too large")
	challenges.Store(true)
	refuses(t, s, Module{URL: "oci://" + host + "/fake:v2"}, "without TLS")
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	server, host := startRegistry(t, "p")
	push(t, host+"/team/a:v1", static.NewLayer(module, moduleLayer))
	credentials := func(key string) []byte {
		return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q},"example.com":{"auth":"eDp4"}}}`, key, base64.StdEncoding.EncodeToString([]byte("u:p")))
	}
	file := filepath.Join(t.TempDir(), "config.json")
	check(t, os.WriteFile(file, credentials(host), 0o600))
	with := newStore(t, func(c *Config) { c.CredentialsFile = file }, server)
	without := newStore(t, nil, server)
	at := "oci://" + host + "/team/a:v1"
	_, release := use(t, with, Module{URL: at})
	release()
	for _, key := range []string{host, "http://" + host + "/v1/", host + "/team", host + "/team/a"} {
		_, release := use(t, without, Module{URL: at, Credentials: credentials(key)})
		release()
	}
	refuses(t, without, Module{URL: at}, "401")
	refuses(t, without, Module{URL: at, Credentials: credentials(host + "/te")}, "401")
	refuses(t, without, Module{URL: at, Credentials: []byte("secret")}, "format of Docker")
}

// TestMemory: a module does not pass through memory.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures")
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	archive := tar.NewWriter(z)
	check(t, archive.WriteHeader(&tar.Header{Name: "plugin.wasm", Mode: 0o600, Size: 60 << 20}))
	_, err := archive.Write(module)
	check(t, err)
	for left := 60<<20 - len(module); left > 0; left -= 1 << 20 {
		_, err = archive.Write(make([]byte, min(left, 1<<20)))
		check(t, err)
	}
	check(t, archive.Close())
	check(t, z.Close())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	check(t, unpack(io.Discard, bytes.NewReader(out.Bytes()), isPlugin))
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

func TestIsLatest(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]bool{
		"oci://a.example/bb": true, "oci://a.example/bb:latest": true, "aa/bb": true, "oci://a.example/bb:v1": false,
		"oci://a.example/bb@sha256:" + sumOf(nil): false, "https://a.example/b.wasm": false, "oci://!": false,
	} {
		if IsLatest(at) != want {
			t.Errorf("%s: %v", at, !want)
		}
	}
}
