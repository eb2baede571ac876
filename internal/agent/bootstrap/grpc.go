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

// GRPC configures the xDS client of gRPC in applications that need no Envoy.
type GRPC struct {
	// Socket is the absolute path of the Unix socket that forwards to the control plane.
	Socket      string
	Node        mesh.NodeID
	NodeCluster string
	Metadata    map[string]any
	// CertDir is the absolute path of the directory of the certificate files.
	CertDir string
}

// Marshal renders the file that the environment variable GRPC_XDS_BOOTSTRAP names.
func (g *GRPC) Marshal() ([]byte, error) {
	type object = map[string]any
	metadata := object{"GENERATOR": "grpc"}
	for k, v := range g.Metadata {
		if k != "GENERATOR" {
			metadata[k] = v
		}
	}
	data, err := json.MarshalIndent(object{
		"xds_servers": []any{object{
			"server_uri":      "unix://" + g.Socket,
			"channel_creds":   []any{object{"type": "insecure"}}, // only this user can open the socket
			"server_features": []any{"xds_v3"},
		}},
		"node": object{
			"id": g.Node.String(), "cluster": g.NodeCluster, "locality": object{}, "metadata": metadata,
		},
		"certificate_providers": object{certificateProvider: object{
			"plugin_name": "file_watcher",
			"config": object{
				"certificate_file":    filepath.Join(g.CertDir, ChainFile),
				"private_key_file":    filepath.Join(g.CertDir, KeyFile),
				"ca_certificate_file": filepath.Join(g.CertDir, RootsFile),
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
