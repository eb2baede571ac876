package meshconfig

import (
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/proxysettings"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// portFields are the fields of the ports of proxies, which must differ.
var portFields = []string{"proxyAdminPort", "statusPort", "proxyMetadata.ENVOY_STATUS_PORT", "proxyMetadata.ENVOY_PROMETHEUS_PORT"}

// checkProxySettings replaces settings of defaultConfig that agents refuse by their defaults, with a
// warning: no new pod would start.
func (c *Reader) checkProxySettings(m *meshv1alpha1.MeshConfig, doc yamldoc.Value) {
	pc := m.GetDefaultConfig()
	for _, fault := range proxysettings.Faults(pc) {
		c.warn(inText(keyMesh, doc, fields.Faultf("defaultConfig."+fault.Field, "%w: the default is used", fault.Err)))
		if !slices.Contains(portFields, fault.Field) {
			resetField(pc, fault.Field)
			continue
		}
		for _, field := range portFields {
			resetField(pc, field)
		}
	}
}

// resetField sets a field of pc, or an item of proxyMetadata, to its default.
func resetField(pc *meshv1alpha1.ProxyConfig, field string) {
	field, variable, _ := strings.Cut(field, ".")
	if variable != "" {
		delete(pc.GetProxyMetadata(), variable)
		return
	}
	own, defaults := pc.ProtoReflect(), Default().GetDefaultConfig().ProtoReflect()
	if fd := istiojson.FieldNamed(own.Descriptor(), field); defaults.Has(fd) {
		own.Set(fd, defaults.Get(fd))
	} else {
		own.Clear(fd)
	}
}
