package proxyless

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Names of the certificate files, as Istio's agent has them.
const (
	keyFile   = "key.pem"
	chainFile = "cert-chain.pem"
	rootsFile = "root-cert.pem"
)

// provider is what the control plane calls the certificate provider.
const provider = "default"

// refresh is how often gRPC looks whether the certificate files have changed.
const refresh = "60s"

// Bootstrap is what gRPC has to know before it reaches the control plane.
type Bootstrap struct {
	// Socket is the absolute path of the socket of Serve.
	Socket      string
	Node        mesh.NodeID
	NodeCluster string
	Metadata    map[string]any
	// CertDir is the absolute path of the directory of the certificate files.
	CertDir string
}

// Marshal renders the file that GRPC_XDS_BOOTSTRAP names.
func (b *Bootstrap) Marshal() ([]byte, error) {
	type object = map[string]any
	metadata := object{"GENERATOR": "grpc"}
	for k, v := range b.Metadata {
		if k != "GENERATOR" {
			metadata[k] = v
		}
	}
	data, err := json.MarshalIndent(object{
		"xds_servers": []any{object{
			"server_uri":      "unix://" + b.Socket,
			"channel_creds":   []any{object{"type": "insecure"}}, // of the socket, which is for this user alone
			"server_features": []any{"xds_v3"},
		}},
		"node": object{
			"id": b.Node.String(), "cluster": b.NodeCluster, "locality": object{}, "metadata": metadata,
		},
		"certificate_providers": object{provider: object{
			"plugin_name": "file_watcher",
			"config": object{
				"certificate_file":    filepath.Join(b.CertDir, chainFile),
				"private_key_file":    filepath.Join(b.CertDir, keyFile),
				"ca_certificate_file": filepath.Join(b.CertDir, rootsFile),
				"refresh_interval":    refresh,
			},
		}},
		"server_listener_resource_name_template": mesh.GRPCServerListener + "%s",
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode gRPC bootstrap: %w", err)
	}
	return append(data, '\n'), nil
}

// Files are what applications read. Only their user may.
type Files struct {
	// CertDir is where the certificate files are written.
	CertDir string
	// BootstrapPath is where Bootstrap is written, once the certificate files
	// are there; empty is nowhere.
	BootstrapPath string
	Bootstrap     []byte

	written map[string][sha256.Size]byte // by path, the hash of what was written
}

// Write writes the certificate with its chain, its key and the roots, PEM, as
// far as they are new. Each file is whole at any moment; who reads one of the
// old and one of the new finds that they do not fit and reads again.
func (f *Files) Write(chain, key, roots []byte) error {
	if f.written == nil {
		f.written = make(map[string][sha256.Size]byte)
	}
	if err := os.MkdirAll(f.CertDir, 0o700); err != nil {
		return fmt.Errorf("make directory for the certificate files: %w", err)
	}
	all := []files.File{
		{Name: filepath.Join(f.CertDir, rootsFile), Data: roots},
		{Name: filepath.Join(f.CertDir, keyFile), Data: key},
		{Name: filepath.Join(f.CertDir, chainFile), Data: chain},
	}
	if f.BootstrapPath != "" {
		if err := os.MkdirAll(filepath.Dir(f.BootstrapPath), 0o700); err != nil {
			return fmt.Errorf("make directory for the gRPC bootstrap: %w", err)
		}
		all = append(all, files.File{Name: f.BootstrapPath, Data: f.Bootstrap})
	}
	for _, file := range all {
		sum := sha256.Sum256(file.Data)
		if f.written[file.Name] == sum {
			continue
		}
		if err := files.Write(file.Name, file.Data, files.Secret); err != nil {
			return err
		}
		f.written[file.Name] = sum
	}
	return nil
}
