package agent

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/files"
)

// applicationFiles are the files that applications read. Only the agent's user may read them. In
// a pod, where containers have different users, each container that mounts their volume may.
type applicationFiles struct {
	certDir       string
	mode, dirMode fs.FileMode
	// bootstrap is the path of the gRPC bootstrap, empty for none. The file appears after
	// the certificate files.
	bootstrap     string
	bootstrapData []byte

	written map[string][sha256.Size]byte // hashes of the written files by path
}

// newApplicationFiles returns nil when applications need no files.
func newApplicationFiles(c *config.Config) (*applicationFiles, error) {
	if c.CertDir == "" {
		return nil, nil
	}
	f := &applicationFiles{
		certDir: c.CertDir, mode: files.Secret, dirMode: 0o700, bootstrap: c.GRPCBootstrap, written: map[string][sha256.Size]byte{},
	}
	if c.InPod {
		f.mode, f.dirMode = files.Public, 0o755
	}
	if c.GRPCBootstrap == "" {
		return f, nil
	}
	socket, err := filepath.Abs(c.XDSSocket)
	if err != nil {
		return nil, fmt.Errorf("path of the xDS socket: %w", err)
	}
	certDir, err := filepath.Abs(c.CertDir)
	if err != nil {
		return nil, fmt.Errorf("path of the certificate files: %w", err)
	}
	f.bootstrapData, err = bootstrap.MarshalGRPC(c.Config, socket, certDir)
	return f, err
}

// write writes the certificate chain, its key and the roots, all PEM, unless they are
// unchanged. Each file is complete at any moment. An application that reads an old file
// and a new one finds that they do not match, and reads again.
func (f *applicationFiles) write(chain, key, roots []byte) error {
	if err := os.MkdirAll(f.certDir, f.dirMode); err != nil {
		return fmt.Errorf("make directory for the certificate files: %w", err)
	}
	all := []files.File{
		{Name: filepath.Join(f.certDir, bootstrap.RootsFile), Data: roots},
		{Name: filepath.Join(f.certDir, bootstrap.KeyFile), Data: key},
		{Name: filepath.Join(f.certDir, bootstrap.ChainFile), Data: chain},
	}
	if f.bootstrap != "" {
		if err := os.MkdirAll(filepath.Dir(f.bootstrap), f.dirMode); err != nil {
			return fmt.Errorf("make directory for the gRPC bootstrap: %w", err)
		}
		all = append(all, files.File{Name: f.bootstrap, Data: f.bootstrapData})
	}
	for _, file := range all {
		sum := sha256.Sum256(file.Data)
		if f.written[file.Name] == sum {
			continue
		}
		if err := files.Write(file.Name, file.Data, f.mode); err != nil {
			return err
		}
		f.written[file.Name] = sum
	}
	return nil
}
