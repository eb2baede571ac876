package kube

import (
	"context"
	"encoding/json"
	"io"
	"time"
)

const (
	// versionAgain is between two looks at the version of the API server, which
	// changes when it is upgraded.
	versionAgain = 10 * time.Minute
	// maxVersion bounds what it says of itself, in bytes.
	maxVersion = 64 << 10
)

// followVersion learns which version the API server has, until ctx ends.
func (s *shared) followVersion(ctx context.Context) {
	for failures := 0; ; {
		wait := versionAgain
		version, err := s.askVersion(ctx)
		if err != nil { // the followers say what is wrong
			failures++
			wait = min(s.waits.retry<<min(failures, 10), s.waits.maxRetry)
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
