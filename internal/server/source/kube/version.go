package kube

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"time"

	"github.com/meshctl/meshctl/internal/backoff"
)

const (
	// versionAgain is the interval between requests for the API server's version, which
	// changes with upgrades.
	versionAgain = 10 * time.Minute
	// maxVersion bounds the response, in bytes.
	maxVersion = 64 << 10
)

// followVersion keeps the version of the API server up to date until ctx ends.
func (s *shared) followVersion(ctx context.Context) {
	for failures := 0; ; {
		wait := versionAgain
		version, err := s.askVersion(ctx)
		if err != nil { // the followers report it
			failures++
			wait = backoff.Wait(failures, s.waits.retry, s.waits.maxRetry, rand.Float64)
		} else {
			failures = 0
			s.version.Store(&version)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (s *shared) askVersion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.waits.answer)
	defer cancel()
	body, err := s.client.get(ctx, "/version", nil, mediaJSON)
	if err != nil {
		return "", err
	}
	defer body.Close()
	var is struct{ GitVersion string }
	if err := json.NewDecoder(io.LimitReader(body, maxVersion)).Decode(&is); err != nil {
		return "", &answerError{err}
	}
	return shorten(is.GitVersion), nil
}
