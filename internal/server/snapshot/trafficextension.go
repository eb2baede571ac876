package snapshot

// KindTrafficExtension is the kind of TrafficExtension. Its objects are kept as the WasmPlugins that
// mean the same.
const KindTrafficExtension Kind = "TrafficExtension"

// LuaCode is the field of a plugin's configuration that has the code of a Lua filter.
const LuaCode = "inlineCode"

// Lua returns the code of a plugin that runs Lua in the place of a module.
func Lua(p *WasmPlugin) (code string, ok bool) {
	if p.Kind != KindTrafficExtension || p.Spec.GetUrl() != "" {
		return "", false
	}
	return p.Spec.GetPluginConfig().GetFields()[LuaCode].GetStringValue(), true
}
