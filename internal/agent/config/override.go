package config

import (
	"cmp"
	"strings"

	"sigs.k8s.io/yaml"
)

// overrideVariable is Istio's variable with the path of a file that is merged into Envoy's
// bootstrap.
const overrideVariable = "ISTIO_BOOTSTRAP_OVERRIDE"

// BootstrapOverrideFile returns the path of the file that is merged into Envoy's bootstrap,
// empty for none.
func BootstrapOverrideFile(environ []string) string { return environment(environ)[overrideVariable] }

// override sets the part of a bootstrap that is merged into the agent's. $(HOST_IP) stands for
// the address of the pod's node, as with Istio.
func (r *resolver) override(cfg *Config, content []byte) {
	cfg.Override = []byte(strings.ReplaceAll(string(content), "$(HOST_IP)", r.lookup("HOST_IP")))
	var part struct {
		Admin struct {
			Address any `json:"address"`
		} `json:"admin"`
	}
	// A file that is no bootstrap is an error when the bootstrap is made.
	if err := yaml.Unmarshal(cfg.Override, &part); err == nil && part.Admin.Address != nil {
		r.warnf("admin.address of %s has no effect: the agent serves Envoy's admin interface at proxyAdminPort of PROXY_CONFIG (or --admin-port)", overrideVariable)
	}
}

// patchesVariable is Istio's variable that makes the agent request patches of the bootstrap.
const patchesVariable = "BOOTSTRAP_XDS_AGENT"

// bootstrapPatches decides whether the agent requests patches of the bootstrap.
func (r *resolver) bootstrapPatches(cfg *Config) {
	cfg.PatchesBootstrap = r.boolean(setting{cmp.Or(r.lookup(patchesVariable), "false"), patchesVariable})
	switch {
	case !cfg.PatchesBootstrap:
		return
	case cfg.NoEnvoy:
		r.warnf("%s has no effect here: the agent starts no Envoy", patchesVariable)
	case cfg.CustomConfigFile != "":
		r.warnf("%s has no effect here: Envoy starts with customConfigFile of PROXY_CONFIG", patchesVariable)
	default:
		return
	}
	cfg.PatchesBootstrap = false
}
