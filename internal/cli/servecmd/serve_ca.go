package servecmd

import (
	"cmp"
	"context"
	"fmt"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/ca"
)

// openCA opens the Secrets with the signing CA of a control plane that reads a
// Kubernetes API, unless the CA is in a directory.
func openCA(ctx context.Context, cfg *server.Config) error {
	if cfg.KubeAccess == nil || cfg.CADir != "" {
		return nil
	}
	source, err := ca.OpenSecrets(ctx, ca.SecretConfig{
		API: cfg.KubeAccess, Namespace: cmp.Or(cfg.SystemNamespace, mesh.DefaultSystemNamespace), Log: cfg.Log,
		Make: func() (map[string][]byte, error) {
			return store.SelfSigned(cmp.Or(cfg.TrustDomain, mesh.DefaultDomain), cfg.Now(), cfg.Rand)
		},
	})
	if err != nil {
		return fmt.Errorf("signing CA, without --ca-dir: %w", err)
	}
	cfg.CASource = source
	return nil
}
