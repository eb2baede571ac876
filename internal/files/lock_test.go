package files

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestLock: one caller at a time has the lock, the others get an error, and no file is
// left.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); err == nil || !strings.Contains(err.Error(), "another process of meshctl is at work") {
		t.Errorf("the second lock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	// A killed process leaves the file, which locks nothing.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var inside, taken atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				unlock, err := Lock(path)
				if err != nil {
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two have the lock")
				}
				taken.Add(1)
				inside.Add(-1)
				if err := unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if taken.Load() == 0 {
		t.Error("nobody got the lock")
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}
