// Package dir reads the objects of one cluster from a directory of Kubernetes and
// Istio YAML and follows its changes. It applies a change as soon as the file event
// arrives. A faulty object does not affect the others: it is reported with file, line
// and reason, and its last good version stays in use.
//
// The goroutine of Run owns all state. Other goroutines may call Status, Lost and
// LeftOut.
package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

const (
	// eventBuffer is the number of file events that may wait.
	eventBuffer = 4096
	// rootCheck is the interval between checks of Dir itself: there is no file event
	// when another directory takes its name.
	rootCheck = time.Second
)

// Source reads one directory. Run it once.
type Source struct {
	// Cluster is the cluster of the objects.
	Cluster mesh.ClusterID
	// Dir is the directory; it must exist when Run starts.
	Dir string
	// SystemNamespace holds the ConfigMap istio; default istio-system.
	SystemNamespace string
	// Revision selects the ConfigMap with the settings of the injector.
	Revision string
	// Remote is set for a cluster other than the control plane's own cluster.
	Remote bool
	// SocketDir is the folder below which objects may name Unix sockets; empty for none.
	SocketDir string
	// IgnorePolicies is that of source.Converter.
	IgnorePolicies bool
	// Analysis is that of source.Converter.
	Analysis bool
	// Log is the logger; default: nothing is logged.
	Log *slog.Logger
	// Now is the clock; required.
	Now func() time.Time

	maxFiles int // 0 means MaxFiles; tests lower it
	status   atomic.Pointer[[]Problem]
}

// Run reads the directory, delivers all its objects, calls Synced, and then follows
// the directory until ctx ends. Then it returns nil. It returns an error if the
// directory cannot be read or watched at the start.
func (s *Source) Run(ctx context.Context, sink snapshot.Sink) error {
	info, err := os.Stat(s.Dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("configuration directory %s does not exist: create it or name another", s.Dir)
	case err != nil:
		return fmt.Errorf("read configuration directory: %w", err)
	case !info.IsDir():
		return fmt.Errorf("configuration directory %s is a file: name the directory that holds it", s.Dir)
	}
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return fmt.Errorf("read configuration directory: %w", err)
	}
	watcher, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		_ = root.Close()
		return fmt.Errorf("watch configuration directory %s: %w (is fs.inotify.max_user_instances too low?)", s.Dir, err)
	}
	r := newReader(s, sink, root, watcher)
	defer r.close()
	// A directory that cannot be watched would be read once and never again.
	if err := watcher.Add(r.dir); err != nil {
		return fmt.Errorf("watch configuration directory %s: %w (is fs.inotify.max_user_watches too low?)", s.Dir, err)
	}
	start := r.now()
	r.folder(".", true)
	r.publish()
	r.logFirst(r.now().Sub(start))
	sink.Synced(s.Cluster)
	r.follow(ctx)
	return nil
}

// reader is the state of Run.
type reader struct {
	*Source
	dir     string
	log     *slog.Logger
	now     func() time.Time
	sink    snapshot.Sink
	root    *os.Root
	watcher *fsnotify.Watcher
	tree
	index
	skipped string // the last logged summary of kinds that are not read
}

func newReader(s *Source, sink snapshot.Sink, root *os.Root, watcher *fsnotify.Watcher) *reader {
	r := &reader{
		Source: s, dir: filepath.Clean(s.Dir), log: s.Log, now: s.Now, sink: sink, root: root, watcher: watcher,
		tree:  tree{files: map[string]*file{}, odd: map[string]*file{}, folders: map[string]*folder{}, faults: map[string]string{}, changed: map[string]bool{}, missing: map[string]time.Time{}, again: map[string]bool{}, under: map[string]int{}, closed: map[string]bool{}},
		index: newIndex(),
	}
	r.parser.conv = &source.Converter{Cluster: s.Cluster, SystemNamespace: s.SystemNamespace, Revision: s.Revision, Remote: s.Remote, SocketDir: s.SocketDir, IgnorePolicies: s.IgnorePolicies, Analysis: s.Analysis}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.log = r.log.With("cluster", string(s.Cluster))
	if r.maxFiles == 0 {
		r.maxFiles = MaxFiles
	}
	return r
}

func (r *reader) close() {
	_ = r.watcher.Close()
	_ = r.root.Close()
}

// follow handles file events until ctx ends. Its cases are: the end; events, where all
// waiting events are handled together; an error of the watcher, after which everything
// is read again; the check of the directory itself; the end of the wait for missing
// files; the retry of unreadable names.
func (r *reader) follow(ctx context.Context) {
	check := time.NewTicker(rootCheck)
	defer check.Stop()
	missing := time.NewTimer(missingWait)
	defer missing.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-r.watcher.Events:
			if !ok {
				return
			}
			r.events(e)
		case err, ok := <-r.watcher.Errors:
			if !ok {
				return
			}
			r.log.Warn("file events were lost: reading everything again", "dir", r.dir, "error", err)
			r.folder(".", true)
		case <-check.C:
			if !r.checkRoot() {
				continue
			}
		case <-missing.C:
		case <-again.C:
			if wait := r.lookAgain(); wait > 0 {
				again.Reset(wait)
			}
		}
		if len(r.again) > 0 && r.failures == 0 {
			r.failures = 1
			again.Reset(firstAgain)
		}
		if wait := r.giveUp(); wait > 0 {
			missing.Reset(wait)
		}
		r.logChange(r.publish())
	}
}

// change is one file event.
type change struct {
	path string
	op   fsnotify.Op
}

// events handles the event and all waiting events. Equal changes are handled once. All
// are received before the first is handled: an equal event that comes later may be a
// new change.
func (r *reader) events(e fsnotify.Event) {
	changes := []change{{r.relative(e.Name), e.Op}}
	for waiting := true; waiting && len(changes) < eventBuffer; {
		select {
		case e, ok := <-r.watcher.Events:
			if waiting = ok; ok {
				changes = append(changes, change{r.relative(e.Name), e.Op})
			}
		default:
			waiting = false
		}
	}
	used := map[change]bool{}
	for _, c := range changes {
		if !used[c] {
			used[c] = true
			r.event(c.path, c.op)
		}
	}
}

// relative returns the slash path of a watched name within the directory.
func (r *reader) relative(name string) string {
	rel, err := filepath.Rel(r.dir, name)
	if err != nil {
		return "."
	}
	return filepath.ToSlash(rel)
}

// event brings the file or folder at the path up to date.
func (r *reader) event(p string, op fsnotify.Op) {
	base := path.Base(p)
	if p == "." && op.Has(fsnotify.Rename|fsnotify.Remove) {
		// The directory was moved: its watch is lost, even if it is back.
		r.unwatched = true
		r.checkRoot()
	}
	if p == "." || strings.HasPrefix(base, ".") && base != kubeletData {
		return
	}
	if !op.Has(fsnotify.Create|fsnotify.Rename|fsnotify.Remove) && !isManifest(base) && base != kubeletData {
		return // neither a new nor a removed file or folder
	}
	info, err := lookFor(func() (fs.FileInfo, error) { return r.root.Lstat(p) })
	switch {
	case files.Transient(err):
		r.failed(p, "cannot be read: ", err)
	case err != nil && base != kubeletData && !r.knows(p):
		// It is gone already, such as a temporary file that was renamed: the event
		// for the new name follows.
	case err != nil && op.Has(fsnotify.Remove) && base != kubeletData:
		r.forget(p)
	case err != nil || base == kubeletData:
		// Scanning the folder finds the new name of a renamed file, so that its
		// objects move instead of being removed and added.
		r.scan(path.Dir(p), false)
	case info.IsDir():
		if op.Has(fsnotify.Create | fsnotify.Rename) { // a folder that moves away and back loses its watch
			r.folder(p, true)
		}
	default:
		r.visit(p, info.Mode().Type(), true)
	}
	r.load()
}

// checkRoot reads everything again if another directory has the name now, if the
// directory is no longer watched, or if there is room for names that were left out. It
// reports whether anything changed.
func (r *reader) checkRoot() bool {
	info, err := os.Stat(r.dir)
	room := r.overfull && r.room
	if err == nil && os.SameFile(info, r.folders["."].info) && !r.gone && !r.unwatched && !room {
		return false
	}
	root, err := os.OpenRoot(r.dir)
	if files.Transient(err) {
		return false // until the next time
	}
	if err != nil {
		r.faults["."] = goneDirectory + reason(err)
		r.gone = true
		return true
	}
	_ = r.root.Close()
	r.root, r.gone, r.unwatched, r.overfull = root, false, false, false
	clear(r.closed)
	delete(r.faults, ".")
	r.folder(".", true)
	return true
}
