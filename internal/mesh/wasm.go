package mesh

// PluginPrefix starts the names of the extensions that configure WasmPlugins. Their filters also accept
// RBAC, in the place of a module that cannot be loaded.
const PluginPrefix = "extensions.istio.io/wasmplugin/"

// Variables of a plugin's VM with which a control plane instructs agents how to fetch the module.
// The module does not get them.
const (
	WasmPullPolicy = "ISTIO_META_WASM_IMAGE_PULL_POLICY"
	WasmPullSecret = "ISTIO_META_WASM_IMAGE_PULL_SECRET"
	WasmVersion    = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"
)

// WasmNoChecksum is the checksum of modules without one.
const WasmNoChecksum = "nil"
