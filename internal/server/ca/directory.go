package ca

import (
	"context"
	"os"

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
	// Follow may call changed when the contents have changed, until ctx ends. The CA
	// finds other changes by comparing Stamps.
	Follow(ctx context.Context, changed func()) error
}

// Dir is a directory as a Source.
type Dir struct{ path string }

// NewDir returns the directory as a Source. It must exist.
func NewDir(path string) (*Dir, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	return &Dir{path}, nil
}

// Place returns the path of the directory.
func (d *Dir) Place() string { return d.path }

// Stamp returns the stamp of the directory.
func (d *Dir) Stamp() store.Stamp { return store.StampOf(d.path) }

// Read reads the directory.
func (d *Dir) Read() (*store.Material, error) { return store.Read(d.path) }

// Follow waits for the end of ctx: a stamp costs a few calls of stat, so the CA finds
// all changes by itself, on file systems without events and behind links, too.
func (d *Dir) Follow(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}
