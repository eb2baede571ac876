package jwks

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
	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

const (
	// saveInterval is the interval between writes of unchanged keys, so that their age is
	// known after a restart.
	saveInterval = time.Hour
	// maxAge is the age at which saved keys no longer count after a restart.
	maxAge = 30 * 24 * time.Hour
)

// savedKeys is a file with the last fetched keys of a source.
type savedKeys struct {
	URL     string          `json:"url,omitempty"`
	Issuer  string          `json:"issuer,omitempty"`
	Fetched time.Time       `json:"fetched"`
	Keys    json.RawMessage `json:"keys"` // a JWKS
}

// savedPath returns the file of a source. Its name is a hash, as URLs contain slashes.
func (f *Fetcher) savedPath(s snapshot.KeySource) string {
	sum := sha256.Sum256([]byte(s.URL + "\n" + s.Issuer))
	return filepath.Join(f.cfg.Dir, hex.EncodeToString(sum[:16])+".json")
}

// save writes the keys in use if they changed or the last write is a while ago.
func (r *run) save(e *entry, changed bool) {
	if r.cfg.Dir == "" || !changed && e.status.Fetched.Sub(e.saved) < saveInterval {
		return
	}
	e.saved = e.status.Fetched
	text, err := json.Marshal(savedKeys{URL: e.URL, Issuer: e.Issuer, Fetched: e.status.Fetched, Keys: json.RawMessage(e.keys.text)})
	if err == nil {
		err = os.MkdirAll(r.cfg.Dir, 0o700)
	}
	if err == nil {
		err = files.Write(r.savedPath(e.KeySource), append(text, '\n'), 0o600)
	}
	if err != nil {
		r.cfg.Log.Warn("key set not saved for the next start", "source", e.KeySource, "error", err)
	}
}

// restore gives an entry its saved keys, which count until the next fetch.
func (r *run) restore(e *entry) {
	if r.cfg.Dir == "" {
		return
	}
	path := r.savedPath(e.KeySource)
	data, err := files.ReadSecret(path, 2*keyset.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s savedKeys
	if err == nil {
		s, err = parseSaved(data, e.KeySource, r.cfg.Now())
	}
	var got keys
	if err == nil {
		got, err = parseKeys(s.Keys)
	}
	if err != nil {
		r.cfg.Log.Warn("saved key set not used", "source", e.KeySource, "file", path, "error", err)
		return
	}
	e.keys, e.saved, e.status.Keys, e.status.Fetched, r.changed = got, s.Fetched, got.number, s.Fetched, true
	r.cfg.Log.Info("saved key set in use until its server answers", "source", e.KeySource, "keys", got.number, "fetched", s.Fetched.UTC().Format(time.RFC3339))
}

func parseSaved(data []byte, of snapshot.KeySource, now time.Time) (s savedKeys, err error) {
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("it is damaged: %w", err)
	}
	switch {
	case s.URL != of.URL || s.Issuer != of.Issuer:
		return s, fmt.Errorf("it is of %s", snapshot.KeySource{URL: s.URL, Issuer: s.Issuer})
	case now.Sub(s.Fetched) > maxAge:
		return s, fmt.Errorf("it was fetched at %s, more than %d days ago", s.Fetched.UTC().Format(time.RFC3339), int(maxAge.Hours()/24))
	case s.Fetched.After(now): // the clock was put back
		s.Fetched = now
	}
	return s, nil
}

// sweep removes the saved keys of sources that are not wanted.
func (r *run) sweep() {
	if r.cfg.Dir == "" {
		return
	}
	wanted := make(map[string]bool, len(r.known))
	for source := range r.known {
		wanted[filepath.Base(r.savedPath(source))] = true
	}
	list, err := os.ReadDir(r.cfg.Dir)
	for _, e := range list {
		if !wanted[e.Name()] && strings.HasSuffix(e.Name(), ".json") {
			err = errors.Join(err, os.Remove(filepath.Join(r.cfg.Dir, e.Name())))
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.cfg.Log.Warn("saved key sets not removed", "error", err)
	}
}
