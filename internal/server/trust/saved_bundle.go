package trust

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/files"
)

const (
	// keepInterval is the interval between writes of an unchanged bundle, so that its
	// age is known after a restart.
	keepInterval = 5 * time.Minute
	// maxKept is the age at which a kept bundle no longer counts after a restart.
	maxKept = 30 * 24 * time.Hour
)

// keptBundle is a file with the last good bundle of an endpoint.
type keptBundle struct {
	TrustDomain string    `json:"trustDomain"`
	URL         string    `json:"url"`
	ID          string    `json:"id,omitempty"`
	LoadedAt    time.Time `json:"loadedAt"`
	CheckedAt   time.Time `json:"checkedAt"`
	// Bundle is the response of the endpoint.
	Bundle json.RawMessage `json:"bundle"`
}

// keptPath returns the file for the bundle of a source. Its name is a hash of the trust
// domain, the URL and the id, so each source has its own file.
func (f *Bundles) keptPath(s Source) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{s.TrustDomain, s.URL, s.ID}, "\n")))
	return filepath.Join(f.cfg.Dir, hex.EncodeToString(sum[:16])+".json")
}

func (f *Bundles) keeps(s Source) bool { return f.cfg.Dir != "" && s.URL != "" }

// keep writes the bundle in use if it is new or the last write is a while ago. It runs in
// the goroutine of follow.
func (f *Bundles) keep(s Source, data []byte) {
	if !f.keeps(s) {
		return
	}
	now, sum := f.cfg.Now(), sha256.Sum256(data)
	f.mu.Lock()
	e := f.sources[s]
	if e == nil || e.keptSum == sum && now.Sub(e.keptAt) < keepInterval {
		f.mu.Unlock()
		return
	}
	e.keptSum, e.keptAt = sum, now
	k := keptBundle{TrustDomain: s.TrustDomain, URL: s.URL, ID: s.ID, LoadedAt: e.loaded, CheckedAt: e.looked, Bundle: data}
	f.mu.Unlock()
	err := os.MkdirAll(f.cfg.Dir, 0o700)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(k); err == nil {
			err = files.Write(f.keptPath(s), append(text, '\n'), 0o600)
		}
	}
	if err != nil {
		f.cfg.Log.Warn("trust bundle not kept for the next start", "trustDomain", s.TrustDomain, "source", s.place(), "error", err)
	}
}

// forget removes the kept bundle of a removed source.
func (f *Bundles) forget(s Source) {
	if !f.keeps(s) {
		return
	}
	if err := os.Remove(f.keptPath(s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.cfg.Log.Warn("kept trust bundle not removed", "trustDomain", s.TrustDomain, "source", s.place(), "error", err)
	}
}

// restore takes the kept bundle of a source into use until the endpoint answers.
func (f *Bundles) restore(s Source, e *sourceState) {
	if !f.keeps(s) {
		return
	}
	k, err := f.kept(s)
	if err == nil {
		e.bundle, err = judge(s.TrustDomain, k.Bundle, f.cfg.Now())
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err == nil && changedSince(s.File, k.CheckedAt): // the newer file counts
		e.bundle = nil
	case err != nil:
		e.bundle = nil
		f.cfg.Log.Warn("kept trust bundle not used", "trustDomain", s.TrustDomain, "file", f.keptPath(s), "error", err)
	default:
		e.loaded, e.looked, e.restored = k.LoadedAt, k.CheckedAt, true
		f.cfg.Log.Info("trust bundle of before the start in use until its endpoint answers", "trustDomain", s.TrustDomain, "source", s.place(),
			"roots", len(e.bundle.Roots), "lastGood", k.CheckedAt.UTC().Format(time.RFC3339))
	}
}

func changedSince(file string, t time.Time) bool {
	if file == "" {
		return false
	}
	info, err := os.Stat(file)
	return err == nil && info.ModTime().After(t)
}

// kept reads the kept bundle of a source. It refuses a file that other users may write
// to.
func (f *Bundles) kept(s Source) (k keptBundle, err error) {
	data, err := files.ReadSecret(f.keptPath(s), 2*maxBundle)
	if err != nil {
		return k, err
	}
	if k, err = parseKept(data); err != nil {
		return k, err
	}
	now := f.cfg.Now()
	switch {
	case k.TrustDomain != s.TrustDomain || k.URL != s.URL || k.ID != s.ID:
		return k, fmt.Errorf("it is of trust domain %q from %q", k.TrustDomain, k.URL)
	case now.Sub(k.CheckedAt) > maxKept:
		return k, fmt.Errorf("its endpoint was good last at %s, more than %d days ago", k.CheckedAt.UTC().Format(time.RFC3339), int(maxKept.Hours()/24))
	case k.CheckedAt.After(now): // the clock was put back
		k.CheckedAt = now
	}
	if k.LoadedAt.After(k.CheckedAt) {
		k.LoadedAt = k.CheckedAt
	}
	return k, nil
}

func parseKept(data []byte) (k keptBundle, err error) {
	if err := json.Unmarshal(data, &k); err != nil {
		return k, fmt.Errorf("it is damaged: %w", err)
	}
	return k, nil
}
