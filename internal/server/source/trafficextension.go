package source

import (
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var trafficExtensionKind = istioKind(kind{
	group: groupIstioPlugins, name: "TrafficExtension", plural: "trafficextensions", versions: []string{"v1alpha1"},
	support: fields.Partly, meaning: "agents fetch modules; see [its fields](#trafficextension)", fields: trafficExtensionFields,
}, func(c *conversion, spec *extensionsv1alpha1.TrafficExtension) *fields.Error {
	plugin, fault := pluginOf(spec)
	c.object = &snapshot.WasmPlugin{Meta: c.meta, Kind: snapshot.KindTrafficExtension, Spec: plugin}
	if fault != nil {
		return commonPluginFault(plugin).And(fault)
	}
	if spec.GetLua() != nil {
		return commonPluginFault(plugin)
	}
	fault = fields.AllFaults(commonPluginFault(plugin), fields.Under("wasm", checkModule(c, plugin)))
	if fault == nil {
		warnOfChecksum(c, "spec.wasm", plugin)
	}
	return fault
})

// pluginOf returns the WasmPlugin that means the same as a TrafficExtension.
func pluginOf(spec *extensionsv1alpha1.TrafficExtension) (*extensionsv1alpha1.WasmPlugin, *fields.Error) {
	out := &extensionsv1alpha1.WasmPlugin{
		Selector: spec.GetSelector(), TargetRefs: spec.GetTargetRefs(),
		Phase: extensionsv1alpha1.PluginPhase(spec.GetPhase()), Priority: spec.GetPriority(),
	}
	for _, m := range spec.GetMatch() {
		out.Match = append(out.Match, &extensionsv1alpha1.WasmPlugin_TrafficSelector{Mode: m.GetMode(), Ports: m.GetPorts()})
	}
	wasm, lua := spec.GetWasm(), spec.GetLua()
	switch {
	case wasm != nil:
		out.Url, out.Sha256, out.ImagePullPolicy, out.ImagePullSecret = wasm.GetUrl(), wasm.GetSha256(), wasm.GetImagePullPolicy(), wasm.GetImagePullSecret()
		out.VerificationKey, out.PluginConfig, out.PluginName = wasm.GetVerificationKey(), wasm.GetPluginConfig(), wasm.GetPluginName()
		out.FailStrategy, out.VmConfig, out.Type = wasm.GetFailStrategy(), wasm.GetVmConfig(), wasm.GetType()
	case lua == nil:
		return out, fields.Faultf("wasm", "is missing: an extension needs wasm or lua")
	case strings.TrimSpace(lua.GetInlineCode()) == "":
		return out, fields.Faultf("lua.inlineCode", "is missing")
	case len(lua.GetInlineCode()) > maxLua:
		return out, fields.Faultf("lua.inlineCode", "has %d bytes, at most %d are possible", len(lua.GetInlineCode()), maxLua)
	default:
		out.PluginConfig = &structpb.Struct{Fields: map[string]*structpb.Value{snapshot.LuaCode: structpb.NewStringValue(lua.GetInlineCode())}}
	}
	return out, nil
}

// maxLua bounds the code of a Lua filter, as the API does.
const maxLua = 64 << 10

const extensionTarget = "a Gateway of the Kubernetes Gateway API; a TrafficExtension with only other references applies to no proxy"

var trafficExtensionFields = []fields.Field{
	{Path: "selector", Support: fields.Works},
	{Path: "targetRefs", Support: fields.Partly, Meaning: extensionTarget, Lacks: otherTarget},
	{Path: "targetRefs.namespace", Support: fields.NoEffect, Meaning: ownGateway},
	{Path: "phase", Support: fields.Works, Meaning: "see [wasm.md](wasm.md#order)"},
	{Path: "priority", Support: fields.Works},
	{Path: "match", Support: fields.Works, Meaning: "see [wasm.md](wasm.md#listeners)"},
	{Path: "wasm", Support: fields.Partly, Meaning: "as the fields of a [WasmPlugin](#wasmplugin)"},
	{Path: "wasm.url", Support: fields.Works, Meaning: noRelay},
	{Path: "wasm.sha256", Support: fields.Works, Meaning: "not for `file://`"},
	{Path: "wasm.imagePullPolicy", Support: fields.Works},
	{Path: "wasm.imagePullSecret", Support: fields.Works, Meaning: "as with a WasmPlugin, see [wasm.md](wasm.md#credentials-of-registries)"},
	{Path: "wasm.verificationKey", Support: fields.NoEffect, Meaning: "signatures of modules are not checked, as in Istio"},
	{Path: "wasm.pluginConfig", Support: fields.Works},
	{Path: "wasm.pluginName", Support: fields.Works},
	{Path: "wasm.failStrategy", Support: fields.Works},
	{Path: "wasm.vmConfig", Support: fields.Works},
	{Path: "wasm.type", Support: fields.Works},
	{Path: "lua", Support: fields.Works, Meaning: "see [wasm.md](wasm.md#lua)"},
}
