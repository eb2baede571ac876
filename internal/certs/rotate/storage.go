package rotate

import (
	"context"
	"os"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Storage holds the files of a Dir. Paths are below the path of the Dir, and
// directories hold only files. The error for missing files is fs.ErrNotExist. Writes
// replace whole files.
type Storage interface {
	// Place returns the name of a path for people.
	Place(path string) string
	// Lock fails while another process holds the lock. It does nothing if writes
	// detect concurrent changes.
	Lock(path string) (unlock func() error, err error)
	// Stat returns nil if the path exists.
	Stat(path string) error
	// Clusters lists the directories of a directory that have the CA of a cluster.
	Clusters(dir string) ([]mesh.ClusterID, error)
	Read(path string) ([]byte, error)
	// ReadSecret also fails if other users can read the file.
	ReadSecret(path string) ([]byte, error)
	// Material reads the CA of a cluster.
	Material(dir string) (*store.Material, error)
	// WriteDir does not change other files of the directory.
	WriteDir(ctx context.Context, path string, set []files.File) error
	WriteFile(ctx context.Context, path string, data []byte) error
	Rename(ctx context.Context, from, to string) error
}

// fileSystem is the storage on disk.
type fileSystem struct{}

func (fileSystem) Place(path string) string { return path }

func (fileSystem) Lock(path string) (unlock func() error, err error) { return files.Lock(path) }

func (fileSystem) Stat(path string) error {
	_, err := os.Lstat(path)
	return err
}

func (fileSystem) Clusters(dir string) ([]mesh.ClusterID, error) { return store.Clusters(dir) }

func (fileSystem) Read(path string) ([]byte, error) { return files.Read(path, store.MaxFile) }

func (fileSystem) ReadSecret(path string) ([]byte, error) {
	return files.ReadSecret(path, store.MaxFile)
}

func (fileSystem) Material(dir string) (*store.Material, error) { return store.Read(dir) }

func (fileSystem) WriteDir(_ context.Context, path string, set []files.File) error {
	if err := files.CheckOutput(path); err != nil {
		return err
	}
	return files.WriteDir(path, set, files.Options{Force: true})
}

func (fileSystem) WriteFile(_ context.Context, path string, data []byte) error {
	if err := files.CheckOutput(filepath.Dir(path)); err != nil {
		return err
	}
	return files.Write(path, data, files.Secret)
}

func (fileSystem) Rename(_ context.Context, from, to string) error { return os.Rename(from, to) }
