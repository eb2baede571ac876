package servecmd

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/workload"
)

// TestWorkloadAddresses: the hosts file of the machine applies to the control plane and to the
// certificate authority, whichever flags are set.
func TestWorkloadAddresses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		workload.EnvironmentFile: "CA_ADDR=istiod-canary.istio-system.svc:15012\nPOD_NAMESPACE=shop\nSERVICE_ACCOUNT=web\n",
		workload.HostsFile:       "192.0.2.7 istiod-canary.istio-system.svc\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type server struct{ at, name string }
	atHosts := server{"192.0.2.7:15012", "istiod-canary.istio-system.svc"}
	for name, tc := range map[string]struct {
		flags         agentconfig.Flags
		discovery, ca server
	}{
		"no flag":           {agentconfig.Flags{}, atHosts, atHosts},
		"discovery address": {agentconfig.Flags{DiscoveryAddress: "plane.example:15012"}, server{"plane.example:15012", "plane.example"}, atHosts},
		"CA address":        {agentconfig.Flags{CAAddress: "ca.example:15012"}, atHosts, server{"ca.example:15012", "ca.example"}},
		"both": {
			agentconfig.Flags{DiscoveryAddress: "plane.example:15012", CAAddress: "ca.example:15012"},
			server{"plane.example:15012", "plane.example"},
			server{"ca.example:15012", "ca.example"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &workloadRunOptions{dir: dir}
			o.agent.flags = tc.flags
			environ, err := o.environment()
			if err != nil {
				t.Fatal(err)
			}
			cfg, _, err := agentconfig.Resolve(agentconfig.Input{Flags: o.agent.flags, Environ: slices.Concat(environ, []string{"INSTANCE_IP=192.0.2.1"})})
			if err != nil {
				t.Fatal(err)
			}
			if got := (server{cfg.Discovery.Addr(), cfg.Discovery.Name}); got != tc.discovery {
				t.Errorf("control plane %v, want %v", got, tc.discovery)
			}
			if got := (server{cfg.CA.Addr(), cfg.CA.Name}); got != tc.ca {
				t.Errorf("certificate authority %v, want %v", got, tc.ca)
			}
		})
	}
}
