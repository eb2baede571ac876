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
