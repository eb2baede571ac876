package registry

import (
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
)

// Injection holds the settings of the pods that are injected in the local cluster. Equal
// settings have the same Mesh.
type Injection struct {
	// Mesh is MeshConfig, nil for the defaults.
	Mesh *meshv1alpha1.MeshConfig
	// Values and Config are the keys of the ConfigMap istio-sidecar-injector.
	Values, Config string
	Network        mesh.NetworkID
}

func (t *tables) findInjection(r *derive.Reads) Injection {
	out := Injection{Mesh: meshConfig(t.meshSettings.Get(r))}
	for _, s := range t.allInjectors.Lookup(r, struct{}{}) {
		out.Values, out.Config = s.Values, s.Config
	}
	out.Network, _ = t.networks.Get(r, t.cfg.Local)
	return out
}

// Injection returns the settings of injected pods.
func (r *Registry) Injection() Injection { return r.report.Load().injection }
