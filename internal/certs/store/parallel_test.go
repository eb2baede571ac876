package store

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// TestLoadOrCreateAtOnce: of many that start at once on a directory without a CA
// one makes it, and all have it.
func TestLoadOrCreateAtOnce(t *testing.T) {
	t.Parallel()
	const starts, rounds = 8, 20
	for name, prepare := range map[string]func(dir string) error{
		"no directory":           func(string) error { return nil },
		"an empty directory":     func(dir string) error { return os.Mkdir(dir, 0o700) },
		"a directory of folders": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "bundles"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range rounds {
				dir := filepath.Join(t.TempDir(), "state")
				if err := prepare(dir); err != nil {
					t.Fatal(err)
				}
				var made atomic.Int64
				var all sync.WaitGroup
				got := make([]*certs.Authority, starts)
				begin := make(chan struct{})
				for i := range starts {
					all.Go(func() {
						<-begin
						a, created, err := LoadOrCreate(dir, "td", time.Now(), rand.Reader)
						if err != nil {
							t.Error(err)
							return
						}
						if got[i] = a; created {
							made.Add(1)
						}
					})
				}
				close(begin)
				all.Wait()
				for _, a := range got {
					if a != nil && got[0] != nil && !a.Cert.Equal(got[0].Cert) {
						t.Error("two starts have two CAs")
					}
				}
				if n := made.Load(); n != 1 {
					t.Errorf("%d made a CA", n)
				}
			}
		})
	}
}
