package identity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/token"
)

const (
	// refetchInterval is how often keys are read again at most because a token
	// was signed by another one, so that callers cannot make the API server
	// busy with tokens of their own making.
	refetchInterval = time.Minute
	// fetchRetry is the same while they cannot be read.
	fetchRetry = 3 * time.Second
	// maxDiscovery is the longest discovery document that is read, in bytes.
	maxDiscovery = 64 << 10
)

var errNoKeys = fmt.Errorf("%w: its issuer is not known yet", errUndecided)

// keys are those that a cluster signs tokens with, as it last told them.
type keys struct {
	fetch func(context.Context) (*token.Verifier, error)
	now   func() time.Time
	// retry is how long after a failure they are fetched again; 0 is fetchRetry.
	retry time.Duration

	mu      sync.Mutex // guards what follows
	current *token.Verifier
	next    time.Time     // nothing is fetched before
	pending chan struct{} // closed when the fetch under way has ended; nil if there is none
}

func (k *keys) get() *token.Verifier {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

func (k *keys) verify(raw string, now time.Time) (token.Claims, error) {
	if v := k.get(); v != nil {
		return v.Verify(raw, now)
	}
	return token.Claims{}, errNoKeys
}

// refetch reads the keys anew unless that was done a moment ago, and keeps the
// last good ones when it fails. Of several callers one fetches, with the ctx
// fetching, and the others wait, until their ctx ends.
func (k *keys) refetch(ctx, fetching context.Context) error {
	k.mu.Lock()
	if p := k.pending; p != nil {
		k.mu.Unlock()
		select {
		case <-p:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// A clock that was set back ends the wait.
	if wait := k.next.Sub(k.now()); wait > 0 && wait <= refetchInterval {
		k.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	k.pending = done
	k.mu.Unlock()

	fetched, err := k.fetch(fetching)

	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending = nil
	close(done)
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
