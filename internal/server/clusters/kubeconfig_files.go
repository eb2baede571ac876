package clusters

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

const (
	// maxKubeconfigs bounds the files in the directory.
	maxKubeconfigs = 1000
	// filesCheck is the interval between scans. They need no file events, so they find
	// changes behind links and on every file system.
	filesCheck = 500 * time.Millisecond
)

// Files finds kubeconfigs in a directory, with one cluster in each file. It ignores
// folders, and files whose names begin with a dot.
type Files struct {
	Dir string
	// Spec returns the spec for the cluster in a file.
	Spec func(remotesecret.Cluster) Spec
	Log  *slog.Logger
}

// Run implements Finder.
func (f *Files) Run(ctx context.Context, registrar Registrar) error {
	s := &fileScan{Files: f, registrar: registrar, known: make(map[string]string)}
	check := time.NewTicker(filesCheck)
	defer check.Stop()
	s.scan()
	registrar.Listed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-check.C:
			s.scan()
		}
	}
}

// fileScan is the state of Files.Run.
type fileScan struct {
	*Files
	registrar Registrar
	known     map[string]string // content of each registered file, as a hash, or its error
	fault     string            // the logged error of reading the directory
}

// scan registers changed files. If the directory cannot be read, nothing changes.
func (s *fileScan) scan() {
	entries, err := os.ReadDir(s.Dir)
	if err == nil && len(entries) > maxKubeconfigs {
		err = fmt.Errorf("%d files: want at most %d", len(entries), maxKubeconfigs)
	}
	if err != nil {
		if s.fault != err.Error() {
			s.Log.Error("the directory of kubeconfigs cannot be read, the clusters that are known stay", "dir", s.Dir, "error", err)
		}
		s.fault = err.Error()
		return
	}
	s.fault = ""
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		name := filepath.Join(s.Dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		switch info, err := os.Stat(name); {
		case files.Transient(err):
			there[name] = true // the error may pass
		case err == nil && info.Mode().IsRegular():
			there[name] = true
			s.take(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		if !there[name] {
			delete(s.known, name)
			s.registrar.Set(Origin{OriginFile, name}, nil)
		}
	}
}

func (s *fileScan) take(name string) {
	text, err := files.Read(name, remotesecret.MaxSize)
	if err == nil && len(text) == 0 {
		return // it is being written
	}
	state := fmt.Sprintf("%x %v", sha256.Sum256(text), err)
	if s.known[name] == state {
		return
	}
	s.known[name] = state
	c := remotesecret.Cluster{Place: name, Err: err}
	if err == nil {
		c = remotesecret.DecodeKubeconfig(name, text)
	}
	s.registrar.Set(Origin{OriginFile, name}, []Spec{s.Spec(c)})
}
