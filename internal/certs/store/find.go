package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
)

// HasAuthority reports whether a directory has the authority of a cluster, in
// either layout. A tls.crt may also be that of a workload.
func HasAuthority(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, CertFile)); err == nil {
		return true
	}
	data, err := files.Read(filepath.Join(dir, TLSCertFile), MaxFile)
	if err != nil {
		return false
	}
	list, err := certs.ParseCerts(data)
	return err == nil && list[0].IsCA
}

// Authorities are the names of the directories in dir that have the authority of a
// cluster, sorted. Hidden ones do not count.
func Authorities(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the authorities: %w", err)
	}
	var out []string
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, ".") && HasAuthority(filepath.Join(dir, name)) {
			out = append(out, name)
		}
	}
	return out, nil
}
