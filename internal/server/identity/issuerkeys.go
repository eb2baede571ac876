package identity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/meshctl/meshctl/internal/token"
)

const (
	// refetchInterval is the shortest interval between two fetches that tokens with
	// unknown keys cause, so that callers cannot load the API server with forged
	// tokens.
	refetchInterval = time.Minute
	// fetchRetry is the interval after a failed fetch.
	fetchRetry = 3 * time.Second
	// maxDiscovery bounds a discovery document, in bytes.
	maxDiscovery = 64 << 10
)

var errNoKeys = fmt.Errorf("%w: its issuer is not known yet", errUndecided)

// issuerKeys are the keys that a token issuer signs with, as last fetched.
type issuerKeys struct {
	fetch func(context.Context) (*token.Verifier, error)
	now   func() time.Time
	// retry is the pause after a failed fetch; 0 means fetchRetry.
	retry time.Duration

	flight singleflight.Group

	mu      sync.Mutex // guards what follows
	current *token.Verifier
	next    time.Time // of the next fetch at the earliest
}

func (k *issuerKeys) get() *token.Verifier {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

func (k *issuerKeys) verify(raw string, now time.Time) (token.Claims, error) {
	if v := k.get(); v != nil {
		return v.Verify(raw, now)
	}
	return token.Claims{}, errNoKeys
}

// refetch fetches the keys unless that was done a moment ago. When it fails, the
// last good keys stay. Concurrent callers share one fetch, which ends with the
// context fetching; each waits until its own ctx ends.
func (k *issuerKeys) refetch(ctx, fetching context.Context) error {
	done := k.flight.DoChan("", func() (any, error) { return nil, k.fetchNow(fetching) })
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *issuerKeys) fetchNow(ctx context.Context) error {
	k.mu.Lock()
	wait := k.next.Sub(k.now())
	k.mu.Unlock()
	if wait > 0 && wait <= refetchInterval { // a clock that was set back ends the wait
		return nil
	}
	fetched, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.next = k.now().Add(cmp.Or(k.retry, fetchRetry))
		return err
	}
	k.current, k.next = fetched, k.now().Add(refetchInterval)
	return nil
}

// parseDiscovery returns the issuer that an OpenID discovery document names.
func parseDiscovery(doc []byte) (issuer string, err error) {
	if len(doc) > maxDiscovery {
		return "", fmt.Errorf("discovery document has %d bytes: want at most %d", len(doc), maxDiscovery)
	}
	var d struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		return "", fmt.Errorf("discovery document: %w", err)
	}
	if d.Issuer == "" || len(d.Issuer) > 2048 {
		return "", errors.New("discovery document: issuer is missing or too long")
	}
	return d.Issuer, nil
}
