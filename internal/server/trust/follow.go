package trust

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/meshctl/meshctl/internal/backoff"
	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
)

const (
	maxBundle    = 1 << 20 // bytes
	fetchTimeout = 10 * time.Second
	// minRefresh and maxRefresh bound the refresh hints of endpoints.
	minRefresh     = time.Second
	maxRefresh     = time.Hour
	defaultRefresh = 5 * time.Minute // in the SPIFFE specification
	firstRetry     = time.Second
	maxRetry       = time.Minute
	// fileInterval is the interval between checks of files.
	fileInterval = 2 * time.Second
)

// follow fetches from a file or an endpoint again and again, until ctx ends.
func (f *Bundles) follow(ctx context.Context, s Source) {
	var file fileReader
	failures := 0
	// answered means that the endpoint gave a bundle, so the file no longer counts.
	trusted, answered := f.restored(s)
	for ctx.Err() == nil {
		wait := fileInterval
		if s.File != "" {
			data, changed, err := file.read(s.File)
			switch {
			case changed && !answered:
				if b, _ := f.report(ctx, s, data, err); b != nil {
					trusted = b.Roots
				}
			case changed && err == nil:
				// The endpoint may prove itself with a new bundle in the file, too.
				if b, err := judge(s.TrustDomain, data, f.cfg.Now()); err == nil {
					trusted = append(slices.Clip(trusted), b.Roots...)
				}
			}
		}
		if s.URL != "" {
			if b, good := f.ask(ctx, s, trusted); good {
				_, hint := b.Published()
				wait, failures, answered, trusted = jittered(refreshOf(hint)), 0, true, b.Roots
			} else {
				failures++
				wait = backoff.Wait(failures, firstRetry, maxRetry, rand.Float64)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// restored returns the roots that were kept before the start, if they are in use.
func (f *Bundles) restored(s Source) (roots []*x509.Certificate, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.sources[s]; e != nil && e.restored {
		return e.bundle.Roots, true
	}
	return nil, false
}

// ask fetches from the endpoint once. It returns the results of report.
func (f *Bundles) ask(ctx context.Context, s Source, trusted []*x509.Certificate) (used *bundle.Bundle, good bool) {
	data, err := f.fetch(ctx, s, trusted)
	if used, good = f.report(ctx, s, data, err); good {
		f.keep(s, data)
	}
	return used, good
}

func refreshOf(hint time.Duration) time.Duration {
	if hint <= 0 {
		return defaultRefresh
	}
	return min(max(hint, minRefresh), maxRefresh)
}

// fileReader reads a file when it has changed.
type fileReader struct {
	stamp string
	data  []byte
}

func (r *fileReader) read(path string) (data []byte, changed bool, err error) {
	info, err := os.Stat(path)
	stamp := fmt.Sprint(err)
	if err == nil {
		stamp = fmt.Sprint(files.Identity(info), info.Size(), info.ModTime().UnixNano())
	}
	if stamp == r.stamp {
		return r.data, false, nil
	}
	r.stamp = stamp
	if err == nil {
		r.data, err = files.Read(path, maxBundle)
	}
	if files.Transient(err) {
		r.stamp = "" // look again
	}
	return r.data, true, err
}

// fetch fetches the bundle of an endpoint. The fetcher of go-spiffe connects to any
// address and reads without a limit.
func (f *Bundles) fetch(ctx context.Context, s Source, trusted []*x509.Certificate) ([]byte, error) {
	client, err := f.client(s, trusted)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections() // the next fetch is far away
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("bundle endpoint: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("bundle endpoint %s answers %s", s.URL, resp.Status)
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("bundle endpoint %s: %w", s.URL, err)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return nil, fmt.Errorf("bundle endpoint %s: the answer is no SPIFFE bundle", s.URL)
	}
	return data, nil
}

// client returns a client for the endpoint of a source. It verifies an endpoint with a
// SPIFFE id by the trusted roots.
func (f *Bundles) client(s Source, trusted []*x509.Certificate) (*http.Client, error) {
	server := dial.ServerTLS{Roots: f.cfg.WebRoots}
	if s.ID != "" {
		id, err := spiffeid.FromString(s.ID)
		if err != nil {
			return nil, err
		}
		roots := x509bundle.FromX509Authorities(id.TrustDomain(), trusted)
		server.Verify = func(shown []*x509.Certificate) error {
			got, _, err := x509svid.Verify(shown, roots, x509svid.WithTime(f.cfg.Now()))
			if err == nil && got != id {
				err = fmt.Errorf("the endpoint is %s, not %s", got, id)
			}
			return err
		}
	}
	return f.cfg.Guard.Client(fetchTimeout, server, maxBundle)
}
