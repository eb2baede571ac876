package rotate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/files"
)

// errCrash is the error of a disk that fails before or after a write.
var errCrash = errors.New("the process was killed")

// quickDisk writes files without syncing them.
type quickDisk struct{ fileSystem }

func (quickDisk) WriteDir(_ context.Context, path string, set []files.File) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	for _, f := range set {
		if err := os.WriteFile(filepath.Join(path, f.Name), f.Data, f.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (quickDisk) WriteFile(_ context.Context, path string, data []byte) error {
	return os.WriteFile(path, data, 0o600)
}

// faulty is a disk that fails before or after write number at, counted from 1. 0 never
// fails.
type faulty struct {
	Storage
	at     int
	after  bool
	writes int
}

func (f *faulty) fail(write func() error) error {
	f.writes++
	if f.writes != f.at {
		return write()
	}
	if f.after {
		if err := write(); err != nil {
			return err
		}
	}
	return errCrash
}

func (f *faulty) WriteDir(ctx context.Context, path string, set []files.File) error {
	return f.fail(func() error { return f.Storage.WriteDir(ctx, path, set) })
}

func (f *faulty) WriteFile(ctx context.Context, path string, data []byte) error {
	return f.fail(func() error { return f.Storage.WriteFile(ctx, path, data) })
}

func (f *faulty) Rename(ctx context.Context, from, to string) error {
	return f.fail(func() error { return f.Storage.Rename(ctx, from, to) })
}

// ways lists the steps of complete rotations; "+" waits.
func ways() map[string][]string {
	return map[string][]string{
		"to the end":        {"start", "+", "next", "+", "finish"},
		"back from trust":   {"start", "abort"},
		"back from sign":    {"start", "+", "next", "abort", "+", "abort"},
		"restored, to end":  {"start", "+", "next", "restore", "+", "finish"},
		"restored and back": {"start", "restore", "abort", "+", "abort"},
	}
}

// TestInterruptedAnywhere: a rotation that is interrupted after any write continues
// with the same command and has the same result. With -short, it is every third write.
func TestInterruptedAnywhere(t *testing.T) {
	stride := 1
	if testing.Short() {
		stride = 10
	}
	for name, way := range ways() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			last := 1
			for at := 1; at <= last; at += stride {
				last = max(last, interrupted(t, way, at))
			}
			if last < 5 {
				t.Errorf("there were %d writes", last)
			}
		})
	}
}

// interrupted returns the number of writes of the complete rotation.
func interrupted(t *testing.T, way []string, at int) int {
	t.Helper()
	c := newClock()
	d := newDir(t, c, "cluster1", "cluster2")
	original, err := readSet(fileSystem{}, d.path("cluster1"), "")
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{Storage: quickDisk{}, at: at, after: true}
	d.Storage = f
	for _, step := range way {
		if step == "+" {
			c.advance(wait)
			continue
		}
		before := d.phase(t)
		_, err := d.do(t.Context(), step)
		if errors.Is(err, errCrash) {
			err = nil
			if phase := d.phase(t); phase == before || strings.HasPrefix(phase, "pending") {
				_, err = d.do(t.Context(), step)
			}
		}
		if err != nil {
			t.Fatalf("%v after write %d, in %s: %v", way, at, step, err)
		}
	}
	d.wholeAndClean(t, original, way, fmt.Sprintf("after write %d", at))
	return f.writes
}

// phase returns the phase of the rotation and checks its directories.
func (d *Dir) phase(t *testing.T) string {
	t.Helper()
	status, err := d.Status()
	switch {
	case err != nil || status != nil && !status.Fine():
		t.Fatalf("the status is %+v, %v", status, err)
	case status == nil:
		return "none"
	case status.Pending:
		return "pending " + string(status.Phase)
	}
	return string(status.Phase)
}

// wholeAndClean checks the end of a rotation: all clusters have the same root, and no
// state is left.
func (d *Dir) wholeAndClean(t *testing.T, original []files.File, way []string, where string) {
	t.Helper()
	if s, err := d.Status(); s != nil || err != nil {
		t.Fatalf("%v, %s: a rotation is under way: %+v, %v", way, where, s, err)
	}
	set, err := readSet(fileSystem{}, d.path("cluster1"), "")
	if err != nil {
		t.Fatal(err)
	}
	finished := way[len(way)-1] == "finish"
	if equalSets(set, original) == finished {
		t.Errorf("%v, %s: the wrong side", way, where)
	}
	_, one := d.read(t, "cluster1")
	_, two := d.read(t, "cluster2")
	if len(one) != 1 || len(two) != 1 || one[0] != two[0] {
		t.Errorf("%v, %s: the roots are %v and %v", way, where, one, two)
	}
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	archives := 0
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, ".finished-"), strings.HasPrefix(name, ".aborted-"):
			archives++
		case name == keepDir || name == lockFile:
			t.Errorf("%v, %s: %s is left", way, where, name)
		}
	}
	if archives != 1 {
		t.Errorf("%v, %s: %d archives", way, where, archives)
	}
}
