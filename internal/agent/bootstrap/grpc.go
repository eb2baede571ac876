package bootstrap

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Names of the certificate files of applications, as Istio's agent names them.
const (
	KeyFile   = "key.pem"
	ChainFile = "cert-chain.pem"
	RootsFile = "root-cert.pem"
)

// certificateProvider is the name of the certificate provider in resources of the control
// plane.
const certificateProvider = "default"

// refreshInterval is the interval at which gRPC checks the certificate files for changes.
const refreshInterval = "60s"

// MarshalGRPC renders the bootstrap of the xDS client of gRPC, in applications that need no
// Envoy: the file that the environment variable GRPC_XDS_BOOTSTRAP names. socket is the
// absolute path of the Unix socket that forwards to the control plane, certDir that of the
// directory of the certificate files.
func MarshalGRPC(c Config, socket, certDir string) ([]byte, error) {
	type object = map[string]any
	metadata := object{"GENERATOR": "grpc"}
	for k, v := range c.Metadata {
		if k != "GENERATOR" {
			metadata[k] = v
		}
	}
	data, err := json.MarshalIndent(object{
		"xds_servers": []any{object{
			"server_uri":      "unix://" + socket,
			"channel_creds":   []any{object{"type": "insecure"}}, // only this user can open the socket
			"server_features": []any{"xds_v3"},
		}},
		"node": object{
			"id": c.Node.String(), "cluster": c.NodeCluster, "locality": object{}, "metadata": metadata,
		},
		"certificate_providers": object{certificateProvider: object{
			"plugin_name": "file_watcher",
			"config": object{
				"certificate_file":    filepath.Join(certDir, ChainFile),
				"private_key_file":    filepath.Join(certDir, KeyFile),
				"ca_certificate_file": filepath.Join(certDir, RootsFile),
				"refresh_interval":    refreshInterval,
			},
		}},
		"server_listener_resource_name_template": mesh.GRPCServerListener + "%s",
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode gRPC bootstrap: %w", err)
	}
	return append(data, '\n'), nil
}
