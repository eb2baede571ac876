package facts

import (
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Injection holds the settings of the pods that are injected in the local cluster. Equal
// settings have the same Mesh.
type Injection struct {
	// Mesh is MeshConfig, nil for the defaults.
	Mesh *meshv1alpha1.MeshConfig
	// Values and Config are the keys of the ConfigMap istio-sidecar-injector.
	Values, Config string
	Network        mesh.NetworkID
	// ProxyConfigs are in the order of their names.
	ProxyConfigs []*snapshot.ProxyConfig
}

// Equal reports whether two settings are equal.
func (i Injection) Equal(j Injection) bool {
	return i.Mesh == j.Mesh && i.Values == j.Values && i.Config == j.Config && i.Network == j.Network &&
		slices.Equal(i.ProxyConfigs, j.ProxyConfigs)
}

func (t *Tables) findInjection(r *derive.Reads) Injection {
	out := Injection{Mesh: meshConfig(t.MeshSettings.Get(r))}
	for _, s := range t.allInjectors.Lookup(r, struct{}{}) {
		out.Values, out.Config = s.Values, s.Config
	}
	out.Network, _ = t.Networks.Get(r, t.Cfg.Local)
	for _, p := range t.allProxyConfigs.Lookup(r, struct{}{}) {
		if c, ok := p.(*snapshot.ProxyConfig); ok {
			out.ProxyConfigs = append(out.ProxyConfigs, c)
		}
	}
	return out
}
