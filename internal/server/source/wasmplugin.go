package source

import (
	"encoding/hex"
	"net/url"
	"path"
	"strings"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var wasmPluginKind = istioKind(kind{
	group: groupIstioPlugins, name: "WasmPlugin", plural: "wasmplugins", versions: []string{"v1alpha1"},
	support: fields.Partly, meaning: "agents fetch modules; see [its fields](#wasmplugin)", fields: wasmPluginFields,
}, func(c *conversion, spec *extensionsv1alpha1.WasmPlugin) *fields.Error {
	c.object = &snapshot.WasmPlugin{Meta: c.meta, Kind: snapshot.KindWasmPlugin, Spec: spec}
	fault := fields.AllFaults(commonPluginFault(spec), checkModule(c, spec))
	if fault == nil {
		warnOfChecksum(c, "spec", spec)
	}
	return fault
})

// pullSecretFault checks the name of the Secret with the credentials of a registry.
func pullSecretFault(c *conversion, p *extensionsv1alpha1.WasmPlugin) *fields.Error {
	if name := snapshot.PullSecret(&snapshot.WasmPlugin{Meta: c.meta, Spec: p}); name != "" && !mesh.IsDNSName(name) {
		return fields.Faultf("imagePullSecret", "%q is not the name of a Secret in the plugin's namespace, %s", p.GetImagePullSecret(), c.meta.Namespace)
	}
	return nil
}

// warnOfChecksum reports a checksum without effect.
func warnOfChecksum(c *conversion, at string, p *extensionsv1alpha1.WasmPlugin) {
	if _, isFile := snapshot.ModuleFile(p); isFile && p.Sha256 != "" && !c.Remote {
		c.warn(fields.Under(at, fields.WithoutEffect("sha256", "Envoy does not compare the module of a file with it")))
	}
}

// checkModule checks the fields that only plugins with a module have.
func checkModule(c *conversion, p *extensionsv1alpha1.WasmPlugin) *fields.Error {
	faults := moduleFault(p.Url)
	if sum, err := hex.DecodeString(p.Sha256); p.Sha256 != "" && (err != nil || len(sum) != 32) {
		faults = faults.And(fields.Faultf("sha256", "is not a SHA-256 checksum: want 64 hexadecimal digits"))
	}
	names := make(map[string]bool)
	environment := fields.Each("vmConfig.env", p.GetVmConfig().GetEnv(), func(field string, e *extensionsv1alpha1.EnvVar) *fields.Error {
		switch {
		case e.Name == "":
			return fields.Faultf(field+".name", "is missing")
		case names[e.Name]:
			return fields.Faultf(field+".name", "%q is given twice", e.Name)
		case e.ValueFrom == extensionsv1alpha1.EnvValueSource_HOST && e.Value != "":
			return fields.Faultf(field+".value", "cannot be used with valueFrom: HOST")
		}
		names[e.Name] = true
		return nil
	})
	return fields.AllFaults(faults, pullSecretFault(c, p), environment)
}

// commonPluginFault checks the fields that plugins with and without a module have.
func commonPluginFault(p *extensionsv1alpha1.WasmPlugin) *fields.Error {
	return fields.AllFaults(attachmentFault(p), fields.Each("match", p.Match, func(field string, m *extensionsv1alpha1.WasmPlugin_TrafficSelector) *fields.Error {
		var faults *fields.Error
		for i, port := range m.Ports {
			if !fields.IsPort(port.GetNumber()) {
				faults = faults.And(fields.Faultf(fields.At(field+".ports", i)+".number", "%d is not a port: want 1 to 65535", port.GetNumber()))
			}
		}
		return faults
	}))
}

// moduleFault checks the URL of a module.
func moduleFault(text string) *fields.Error {
	if text == "" {
		return fields.Faultf("url", "is missing")
	}
	if !strings.Contains(text, "://") && !strings.HasPrefix(text, "file:") {
		text = "oci://" + text // with the port of the registry, the host would be the scheme
	}
	u, err := url.Parse(text)
	if err != nil {
		return fields.Faultf("url", "%q is not a URL", text)
	}
	switch u.Scheme {
	case "oci", "http", "https":
	case "file":
		if u.Host != "" || !path.IsAbs(u.Path) {
			return fields.Faultf("url", "%q does not name a file: use file:///, followed by its path", text)
		}
	default:
		return fields.Faultf("url", "scheme %q is not supported: use file, http, https or oci", u.Scheme)
	}
	return nil
}

const (
	wasmTarget = "a Gateway of the Kubernetes Gateway API; a WasmPlugin with only other references applies to no proxy"
	noRelay    = "`file://` works with every proxy. For `oci://`, `http://` and `https://`, a proxy needs [meshctl's agent](wasm.md#modules). Without the agent, `failStrategy` decides: proxies refuse the requests to which the plugin applies, or work without the plugin"
)

var wasmPluginFields = []fields.Field{
	{Path: "selector", Support: fields.Works},
	{Path: "targetRef", Support: fields.Partly, Meaning: wasmTarget, Lacks: otherTarget},
	{Path: "targetRef.namespace", Support: fields.NoEffect, Meaning: ownGateway},
	{Path: "targetRefs", Support: fields.Partly, Meaning: wasmTarget, Lacks: otherTarget},
	{Path: "targetRefs.namespace", Support: fields.NoEffect, Meaning: ownGateway},
	{Path: "url", Support: fields.Works, Meaning: noRelay},
	{Path: "sha256", Support: fields.Works, Meaning: "not for `file://`"},
	{Path: "imagePullPolicy", Support: fields.Works},
	{Path: "imagePullSecret", Support: fields.Works, Meaning: "for workloads of the plugin's namespace that may read its Secrets, see [wasm.md](wasm.md#credentials-of-registries)"},
	{Path: "verificationKey", Support: fields.NoEffect, Meaning: "signatures of modules are not checked, as in Istio"},
	{Path: "pluginConfig", Support: fields.Works},
	{Path: "pluginName", Support: fields.Works},
	{Path: "phase", Support: fields.Works, Meaning: "see [wasm.md](wasm.md#order)"},
	{Path: "priority", Support: fields.Works},
	{Path: "failStrategy", Support: fields.Works},
	{Path: "vmConfig", Support: fields.Works},
	{Path: "match", Support: fields.Works, Meaning: "see [wasm.md](wasm.md#listeners)"},
	{Path: "type", Support: fields.Works},
}
