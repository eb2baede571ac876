package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/files"
)

// checkDirectories makes the directory of the bootstrap and refuses directories in which
// other users could replace the agent's files. In a pod, where a volume belongs to its
// containers alone, any mode is good.
func checkDirectories(c *config.Config) error {
	if err := os.MkdirAll(c.ConfigPath, 0o700); err != nil {
		return fmt.Errorf("make directory for the bootstrap: %w", err)
	}
	return refuseDirectories(c)
}

func refuseDirectories(c *config.Config) error {
	if c.InPod {
		return nil
	}
	dirs := [][2]string{{c.ConfigPath, "--config-path"}, {c.CertDir, "--output-certs"}}
	if c.GRPCBootstrap != "" {
		dirs = append(dirs, [2]string{filepath.Dir(c.GRPCBootstrap), "--grpc-bootstrap"})
	}
	for _, dir := range dirs {
		if err := files.CheckDirectory(dir[0]); dir[0] != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("refuse the directory %s (%s): %w", dir[0], dir[1], err)
		}
	}
	return nil
}
