package config

import "github.com/meshctl/meshctl/internal/agent/bootstrap"

// Summary returns the configuration in a form to print.
func (c *Config) Summary() map[string]any {
	servers := func(first bootstrap.Server, more []bootstrap.Server) []any {
		var out []any
		for _, s := range append([]bootstrap.Server{first}, more...) {
			out = append(out, map[string]any{"address": s.Addr(), "name": s.Name})
		}
		return out
	}
	return map[string]any{
		"node":                 map[string]any{"id": c.Node.String(), "cluster": c.NodeCluster, "metadata": c.Metadata},
		"identity":             c.Identity.String(),
		"controlPlane":         servers(c.Discovery, c.MoreDiscovery),
		"certificateAuthority": servers(c.CA, c.MoreCA),
		"files": map[string]any{
			"token": c.TokenFile, "rootCA": c.CARootFile, "xdsRootCA": c.XDSRootFile, "crl": c.CRLFile,
			"configPath": c.ConfigPath, "sdsSocket": c.SDSSocket, "xdsSocket": c.XDSSocket,
			"grpcBootstrap": c.GRPCBootstrap, "outputCerts": c.CertDir,
		},
		"ports": map[string]any{"admin": c.AdminPort, "status": c.StatusPort, "readiness": c.ReadyPort, "prometheus": c.StatsPort},
		"envoy": map[string]any{
			"path": c.EnvoyPath, "runs": !c.NoEnvoy, "relay": !c.Direct && !c.NoEnvoy, "delta": c.Delta,
			"concurrency": c.Concurrency, "logLevel": c.LogLevel,
			"drainDuration": c.Drain.String(), "terminationDrainDuration": c.TerminationDrain.String(),
		},
		"certificate": map[string]any{"lifetime": c.SecretTTL.String(), "grace": c.Grace, "jitter": c.Jitter},
	}
}
