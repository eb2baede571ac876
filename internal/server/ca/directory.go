package ca

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/meshctl/meshctl/internal/certs/store"
)

// Source is a place with the files of a CA.
type Source interface {
	// Place names the source in messages.
	Place() string
	// Stamp identifies the current contents without reading them.
	Stamp() store.Stamp
	// Read reads the contents. It fails if they cannot be read now.
	Read() (*store.Material, error)
	// Follow calls changed when the contents may have changed, until ctx ends. It
	// may miss changes, which a comparison of Stamps finds.
	Follow(ctx context.Context, changed func()) error
}

// Dir is a directory as a Source.
type Dir struct {
	path string
	log  *slog.Logger
}

// NewDir returns the directory as a Source. It must exist.
func NewDir(path string, log *slog.Logger) (*Dir, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	return &Dir{path, log}, nil
}

// Place returns the path of the directory.
func (d *Dir) Place() string { return d.path }

// Stamp returns the stamp of the directory.
func (d *Dir) Stamp() store.Stamp { return store.StampOf(d.path) }

// Read reads the directory.
func (d *Dir) Read() (*store.Material, error) { return store.Read(d.path) }

// Follow waits for file events.
func (d *Dir) Follow(ctx context.Context, changed func()) error {
	w := d.watch()
	defer w.close()
	renew := time.NewTicker(checkInterval)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events():
			if w.concerns(e) {
				w.renew()
				changed()
			}
		case err := <-w.errors():
			d.log.Warn("file events of the signing CA were lost", "dir", d.path, "error", err)
			changed()
		case <-renew.C:
			w.renew()
		}
	}
}

// watcher watches a directory, and its parent, where another directory may take its
// name. If Watcher is nil, only the periodic check finds changes.
type watcher struct {
	*fsnotify.Watcher
	dir     string
	watched string // identity of the watched directory, see store.Stamp
}

func (d *Dir) watch() *watcher {
	w := &watcher{dir: filepath.Clean(d.path)}
	var err error
	if w.Watcher, err = fsnotify.NewWatcher(); err == nil {
		err = w.Add(filepath.Dir(w.dir))
	}
	if err != nil {
		d.log.Warn("no file events for the signing CA, looking every second", "dir", w.dir, "error", err)
	}
	w.renew()
	return w
}

// renew watches the directory that has the path now.
func (w *watcher) renew() {
	if w.Watcher == nil {
		return
	}
	if now := store.StampOf(w.dir).Directory; now != w.watched {
		_ = w.Remove(w.dir)
		if w.Add(w.dir) == nil {
			w.watched = now
		}
	}
}

func (w *watcher) events() <-chan fsnotify.Event {
	if w.Watcher == nil {
		return nil
	}
	return w.Events
}

func (w *watcher) errors() <-chan error {
	if w.Watcher == nil {
		return nil
	}
	return w.Errors
}

// concerns reports whether an event is about the directory or its files.
func (w *watcher) concerns(e fsnotify.Event) bool {
	name := filepath.Clean(e.Name)
	return name == w.dir || filepath.Dir(name) == w.dir
}

func (w *watcher) close() {
	if w.Watcher != nil {
		_ = w.Close()
	}
}
