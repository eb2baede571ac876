package rotate

import (
	"context"
	"os"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
)

// Storage is where the files of a Dir lie. Paths are below that of the Dir;
// directories hold files alone. The error for what is not there is
// fs.ErrNotExist. What is written replaces what is there, whole.
type Storage interface {
	// Place names a path for people.
	Place(path string) string
	// Lock fails while somebody else holds the lock. Storage that notices
	// others when it writes needs none.
	Lock(path string) (unlock func() error, err error)
	// Stat returns nil when there is something.
	Stat(path string) error
	// Names lists the directories of a directory, and may list files.
	Names(dir string) ([]string, error)
	Read(path string) ([]byte, error)
	// ReadSecret also fails when others can read the file.
	ReadSecret(path string) ([]byte, error)
	// Material reads the authority of a cluster.
	Material(dir string) (*store.Material, error)
	// WriteDir leaves other files in the directory as they are.
	WriteDir(ctx context.Context, path string, set []files.File) error
	WriteFile(ctx context.Context, path string, data []byte) error
	Rename(ctx context.Context, from, to string) error
}

// fileSystem is the storage on the disk.
type fileSystem struct{}

func (fileSystem) Place(path string) string { return path }

func (fileSystem) Lock(path string) (unlock func() error, err error) { return files.Lock(path) }

func (fileSystem) Stat(path string) error {
	_, err := os.Lstat(path)
	return err
}

func (fileSystem) Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (fileSystem) Read(path string) ([]byte, error) { return files.Read(path, store.MaxFile) }

func (fileSystem) ReadSecret(path string) ([]byte, error) {
	return files.ReadSecret(path, store.MaxFile)
}

func (fileSystem) Material(dir string) (*store.Material, error) { return store.Read(dir) }

func (fileSystem) WriteDir(_ context.Context, path string, set []files.File) error {
	return files.WriteDir(path, set, files.Options{Force: true})
}

func (fileSystem) WriteFile(_ context.Context, path string, data []byte) error {
	return files.Write(path, data, files.Secret)
}

func (fileSystem) Rename(_ context.Context, from, to string) error { return os.Rename(from, to) }
