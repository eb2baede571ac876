package config

import (
	"strings"
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
}
