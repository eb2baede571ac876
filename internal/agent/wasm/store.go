// Package wasm fetches the WebAssembly modules of plugins from web servers and registries, and
// keeps them in files for Envoy.
package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/dial"
)

// Limits of a store.
const (
	maxFetches = 4 // at a time
	maxModules = 100
	maxBytes   = 512 << 20 // of all modules
)

// Module names a module.
type Module struct {
	// URL has the scheme http, https or oci. A URL without a scheme names an image.
	URL string
	// SHA256 is the sum that the module, the file that contains it, or the digest of its image
	// must have, in hexadecimal digits; empty accepts everything.
	SHA256 string
	// Version is the version of a plugin that needs the module which the server has now. Plugins
	// with the same version share a module, which is not fetched again. It is empty for plugins
	// that may use an older module.
	Version string
	// Credentials holds the credentials of registries, in the format of Docker's config.json.
	// Empty means Config.CredentialsFile.
	Credentials []byte
}

// Config configures a store. All fields but Insecure and CredentialsFile are needed.
type Config struct {
	// Dir is the directory of the modules, which belongs to the store alone.
	Dir string
	// Insecure lists registries, host:port, to which the store may connect without TLS and at
	// loopback addresses. "*" permits connections without TLS to all.
	Insecure []string
	// Blocked are networks to which the store does not connect.
	Blocked []netip.Prefix
	// CredentialsFile has the credentials of registries.
	CredentialsFile string
	// Timeout bounds the time in which a module is fetched.
	Timeout time.Duration
	// Expiry is how long modules stay that no plugin uses. Purge is the interval between checks.
	Expiry, Purge time.Duration
	Now           func() time.Time
}

// Store keeps modules. Its methods may be called by several goroutines.
type Store struct {
	Config
	strict, local http.RoundTripper
	slots         chan struct{} // one for each fetch at a time
	ctx           context.Context
	stop          context.CancelFunc
	fetches       sync.WaitGroup

	lookups, results, conversions *prometheus.CounterVec
	conversion                    prometheus.Histogram

	mu      sync.Mutex
	entries map[string]*entry // by key
	files   map[string]*file  // by name, the sum of their content
}

// entry is a module that is fetched, or was. Its other fields are set when done is closed.
type entry struct {
	done chan struct{}
	file *file
	err  error
}

type file struct {
	path   string
	size   int64
	users  int
	unused time.Time // since when users is 0
}

// New returns an empty store, and removes the modules of an earlier store. Run must be called,
// and ends the fetches; ctx gives them its values only.
func New(ctx context.Context, c Config) (*Store, error) {
	if err := os.RemoveAll(c.Dir); err != nil {
		return nil, fmt.Errorf("remove old modules of plugins: %w", err)
	}
	s := &Store{Config: c, slots: make(chan struct{}, maxFetches), entries: map[string]*entry{}, files: map[string]*file{}}
	s.lookups = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "istio_agent_wasm_cache_lookup_count", Help: "Modules that plugins need, and whether the agent had them.",
	}, []string{"hit"})
	s.results = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "istio_agent_wasm_remote_fetch_count", Help: "Modules that were fetched, by result.",
	}, []string{"result"})
	s.conversions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "istio_agent_wasm_config_conversion_count", Help: "Extensions in responses with plugins, by what became of their modules.",
	}, []string{"result"})
	s.conversion = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "istio_agent_wasm_config_conversion_duration", Help: "Milliseconds until the extensions of a response had their modules.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 15),
	})
	s.strict = dial.Guard{Refused: c.Blocked}.DownloadTransport(maxDownload)
	s.local = dial.Guard{Loopback: true, Refused: c.Blocked}.DownloadTransport(maxDownload)
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// Collectors returns the metrics of the store, under the names of Istio's agent.
func (s *Store) Collectors() []prometheus.Collector {
	entries := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "istio_agent_wasm_cache_entries", Help: "Modules that the agent has or fetches.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.entries))
	})
	return []prometheus.Collector{entries, s.lookups, s.results, s.conversions, s.conversion}
}

// Converted counts the extensions of a response by what became of their modules, and the time that
// they took.
func (s *Store) Converted(results []string, took time.Duration) {
	for _, r := range results {
		s.conversions.WithLabelValues(r).Inc()
	}
	s.conversion.Observe(float64(took.Milliseconds()))
}

// Run removes modules that no plugin uses for a while, until ctx ends. Then it removes all.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.Purge)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.mu.Lock()
			s.purge(s.Now().Add(-s.Expiry))
			s.mu.Unlock()
		case <-ctx.Done():
			s.mu.Lock()
			s.stop() // no further fetch starts
			s.mu.Unlock()
			s.fetches.Wait()
			if err := os.RemoveAll(s.Dir); err != nil {
				return fmt.Errorf("remove the modules of plugins: %w", err)
			}
			return nil
		}
	}
}

// Use returns the file of a module, which stays until release is called. It fetches the module if
// there is none, and waits until ctx ends. The fetch goes on after that.
func (s *Store) Use(ctx context.Context, m Module) (path string, release func(), err error) {
	key := m.key()
	s.mu.Lock()
	e := s.entries[key]
	s.lookups.WithLabelValues(strconv.FormatBool(e != nil)).Inc()
	if e == nil {
		if s.ctx.Err() != nil {
			s.mu.Unlock()
			return "", nil, s.ctx.Err()
		}
		e = &entry{done: make(chan struct{})}
		s.entries[key] = e
		s.fetches.Go(func() { s.fill(key, e, m) })
	}
	s.mu.Unlock()
	select {
	case <-e.done:
	case <-ctx.Done():
		return "", nil, errors.New("it is not fetched yet")
	}
	if e.err != nil {
		return "", nil, e.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[key] != e {
		return "", nil, errors.New("it was removed to make room")
	}
	e.file.users++
	return e.file.path, sync.OnceFunc(func() { s.release(e.file) }), nil
}

// key returns what distinguishes modules. Credentials are hashed with the rest.
func (m Module) key() string {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and bytes
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

func (s *Store) release(f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.users--; f.users == 0 {
		f.unused = s.Now()
	}
}

// fill fetches the module of an entry. An entry that failed is removed, so that the next user
// tries again.
func (s *Store) fill(key string, e *entry, m Module) {
	defer close(e.done)
	ctx, cancel := context.WithTimeout(s.ctx, s.Timeout)
	defer cancel()
	var sum, from string
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		from, sum, e.err = s.download(ctx, m)
	case <-ctx.Done():
		e.err = errors.New("too many modules are fetched at the moment")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.err == nil {
		e.file, e.err = s.add(from, sum)
	}
	s.results.WithLabelValues(resultOf(e.err)).Inc()
	if e.err != nil {
		delete(s.entries, key)
	}
}

// resultOf returns the label of a fetch that ended with err.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "success"
	case errors.As(err, new(*sumError)):
		return "checksum_mismatched"
	case errors.As(err, new(*manifestError)):
		return "manifest_failure"
	case errors.As(err, new(contentError)):
		return "fetch_failure"
	default:
		return "download_failure"
	}
}

// sumError is the error of a module with another sum than expected.
type sumError struct{ got, want string }

func (e *sumError) Error() string { return "its SHA-256 sum is " + e.got + ", want " + e.want }

// manifestError is the error of an image whose manifest cannot be read.
type manifestError struct{ error }

func (e *manifestError) Unwrap() error { return e.error }

// download fetches a module into a new file. It returns its path, and the sum of its content.
func (s *Store) download(ctx context.Context, m Module) (path, sum string, err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return "", "", err
	}
	f, err := os.CreateTemp(s.Dir, "new-*") // of mode 0600
	if err != nil {
		return "", "", err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	hash := sha256.New()
	outer, err := s.fetch(ctx, m, io.MultiWriter(f, hash))
	if err != nil {
		return "", "", err
	}
	sum = hex.EncodeToString(hash.Sum(nil))
	if want := strings.ToLower(m.SHA256); want != "" && want != sum && want != outer {
		return "", "", &sumError{outer, want}
	}
	return f.Name(), sum, nil
}

// add adds a downloaded file with the sum of its content.
func (s *Store) add(from, sum string) (*file, error) {
	if f := s.files[sum]; f != nil {
		f.unused = s.Now()
		return f, os.Remove(from)
	}
	info, err := os.Stat(from)
	if err != nil {
		return nil, err
	}
	s.purge(s.Now().Add(-s.Expiry))
	for len(s.files) >= maxModules || s.size()+info.Size() > maxBytes {
		if !s.removeOldest() {
			return nil, errors.Join(fmt.Errorf("the modules in use fill the space for %d modules with %d MiB", maxModules, maxBytes>>20), os.Remove(from))
		}
	}
	f := &file{path: filepath.Join(s.Dir, sum+".wasm"), size: info.Size(), unused: s.Now()}
	if err := os.Rename(from, f.path); err != nil {
		return nil, errors.Join(err, os.Remove(from))
	}
	s.files[sum] = f
	return f, nil
}

func (s *Store) size() int64 {
	var n int64
	for _, f := range s.files {
		n += f.size
	}
	return n
}

// purge removes the modules without a user since before a time.
func (s *Store) purge(before time.Time) {
	for sum, f := range s.files {
		if f.users == 0 && f.unused.Before(before) {
			s.remove(sum)
		}
	}
}

// removeOldest removes the module that had no user for the longest time. It returns false if all
// have one.
func (s *Store) removeOldest() bool {
	oldest := ""
	for sum, f := range s.files {
		if f.users == 0 && (oldest == "" || f.unused.Before(s.files[oldest].unused)) {
			oldest = sum
		}
	}
	if oldest != "" {
		s.remove(oldest)
	}
	return oldest != ""
}

func (s *Store) remove(sum string) {
	f := s.files[sum]
	delete(s.files, sum)
	for key, e := range s.entries {
		if e.file == f {
			delete(s.entries, key)
		}
	}
	_ = os.Remove(f.path) // Run removes what is left
}
