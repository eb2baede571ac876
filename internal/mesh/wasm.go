package mesh

import "strings"

// Prefixes of the names of the extensions that configure WasmPlugins and TrafficExtensions. The filters
// of modules also accept RBAC, in the place of a module that cannot be loaded.
const (
	PluginPrefix           = "extensions.istio.io/wasmplugin/"
	TrafficExtensionPrefix = "extensions.istio.io/trafficextension/"
)

// CutPluginPrefix returns the name of an extension without its prefix. ok is false if it is not of a
// WasmPlugin or TrafficExtension.
func CutPluginPrefix(extension string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(extension, PluginPrefix); ok {
		return name, true
	}
	return strings.CutPrefix(extension, TrafficExtensionPrefix)
}

// Variables of a plugin's VM with which a control plane instructs agents how to fetch the module.
// The module does not get them.
const (
	WasmPullPolicy = "ISTIO_META_WASM_IMAGE_PULL_POLICY"
	WasmPullSecret = "ISTIO_META_WASM_IMAGE_PULL_SECRET"
	WasmVersion    = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"
)

// WasmNoChecksum is the checksum of modules without one.
const WasmNoChecksum = "nil"
