package snapshot

import (
	"strings"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
)

// KindWasmPlugin is the kind of WasmPlugin.
const KindWasmPlugin Kind = "WasmPlugin"

// WasmPlugin runs a WebAssembly module in workloads' proxies.
type WasmPlugin = Config[*extensionsv1alpha1.WasmPlugin]

// ModuleFile returns the path of a plugin's module. ok is false if the module is not in a
// file, so that Envoy cannot load it itself.
func ModuleFile(p *extensionsv1alpha1.WasmPlugin) (path string, ok bool) {
	return strings.CutPrefix(p.GetUrl(), "file://")
}

// PullSecret returns the name of the Secret, in the plugin's namespace, with the credentials of the
// registry that has the plugin's module. It is empty if there is none.
func PullSecret(p *WasmPlugin) string {
	if scheme, _, found := strings.Cut(p.Spec.GetUrl(), "://"); found && scheme != "oci" {
		return "" // no registry
	}
	name := strings.TrimPrefix(p.Spec.GetImagePullSecret(), "kubernetes://")
	return strings.TrimPrefix(name, p.Namespace+"/")
}
