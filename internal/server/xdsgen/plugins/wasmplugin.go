// Package plugins generates the filters of WasmPlugins and TrafficExtensions.
package plugins

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	jwtauthnv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// ChoosePlugins returns the WasmPlugins and TrafficExtensions of a workload, in the order of their
// filters: by phase, by priority, and by name. Plugins of the root namespace count in all namespaces.
// Modules that are not in files need a relay that fetches them.
func ChoosePlugins(s *snapshot.Snapshot, n proxy.Node, labels map[string]string) []*snapshot.WasmPlugin {
	var out []*snapshot.WasmPlugin
	choose := func(_ *snapshot.NamespaceFacts, p *snapshot.WasmPlugin) {
		_, isFile := snapshot.ModuleFile(p.Spec)
		leftOut := !isFile && !n.Relayed && p.Spec.GetFailStrategy() == extensionsv1alpha1.FailStrategy_FAIL_OPEN
		if !leftOut && proxy.IsAttached(p.Namespace, p.Spec, n.Namespace, labels) {
			out = append(out, p)
		}
	}
	proxy.EachPolicy(s, n.Namespace, snapshot.KindWasmPlugin, choose)
	proxy.EachPolicy(s, n.Namespace, snapshot.KindTrafficExtension, choose)
	slices.SortFunc(out, func(a, b *snapshot.WasmPlugin) int {
		return cmp.Or(
			cmp.Compare(phaseOf(a.Spec), phaseOf(b.Spec)),
			cmp.Compare(b.Spec.GetPriority().GetValue(), a.Spec.GetPriority().GetValue()),
			strings.Compare(a.Name, b.Name), strings.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Kind, a.Kind),
		)
	})
	return out
}

// phaseOf returns the place of a plugin's phase. Plugins without a phase come last.
func phaseOf(p *extensionsv1alpha1.WasmPlugin) extensionsv1alpha1.PluginPhase {
	if phase := p.GetPhase(); phase != extensionsv1alpha1.PluginPhase_UNSPECIFIED_PHASE {
		return phase
	}
	return extensionsv1alpha1.PluginPhase_STATS + 1
}

// PluginFilter describes the filter of a plugin, or the one that checks tokens, whose
// configuration comes by ECDS.
type PluginFilter struct {
	Name    string // filterJWT, or of a plugin
	Network bool   // not HTTP
	Lua     bool   // not a module
	Phase   extensionsv1alpha1.PluginPhase
	Open    bool              // requests pass if the configuration is invalid
	Ports   wire.List[uint32] // empty means all
}

// PluginFilters returns the filters of plugins in listeners of a mode, and the one that checks
// tokens.
func PluginFilters(plugins []*snapshot.WasmPlugin, mode typev1beta1.WorkloadMode, checksTokens bool) wire.List[PluginFilter] {
	var out []PluginFilter
	tokens := func() {
		if checksTokens {
			out, checksTokens = append(out, PluginFilter{Name: rbac.FilterJWT, Phase: extensionsv1alpha1.PluginPhase_AUTHN}), false
		}
	}
	for _, p := range plugins {
		if phaseOf(p.Spec) > extensionsv1alpha1.PluginPhase_AUTHN {
			tokens()
		}
		if ports, ok := pluginPorts(p.Spec, mode); ok {
			_, isLua := snapshot.Lua(p)
			out = append(out, PluginFilter{
				Name: PluginName(p), Lua: isLua, Network: isNetwork(p.Spec), Phase: phaseOf(p.Spec), Ports: wire.ListOf(ports),
				Open: p.Spec.GetFailStrategy() == extensionsv1alpha1.FailStrategy_FAIL_OPEN,
			})
		}
	}
	tokens()
	return wire.ListOf(out)
}

// pluginPorts returns the ports to which a plugin applies in listeners of a mode; none means
// all. ok is false if the plugin does not apply there.
func pluginPorts(p *extensionsv1alpha1.WasmPlugin, mode typev1beta1.WorkloadMode) (ports []uint32, ok bool) {
	if len(p.GetMatch()) == 0 {
		return nil, true
	}
	for _, m := range p.GetMatch() {
		if m.GetMode() == typev1beta1.WorkloadMode_CLIENT && mode == typev1beta1.WorkloadMode_SERVER ||
			m.GetMode() == typev1beta1.WorkloadMode_SERVER && mode == typev1beta1.WorkloadMode_CLIENT {
			continue
		}
		if len(m.GetPorts()) == 0 {
			return nil, true
		}
		for _, port := range m.GetPorts() {
			ports = append(ports, port.GetNumber())
		}
	}
	return ports, len(ports) > 0
}

func isNetwork(p *extensionsv1alpha1.WasmPlugin) bool {
	return p.GetType() == extensionsv1alpha1.PluginType_NETWORK
}

// PluginName returns the name of a plugin's filter and extension, as with Istio.
func PluginName(p *snapshot.WasmPlugin) string {
	if p.Kind == snapshot.KindTrafficExtension {
		return mesh.TrafficExtensionPrefix + p.Namespace + "." + p.Name
	}
	return mesh.PluginPrefix + p.Namespace + "." + p.Name
}

// PluginExtensions returns the configuration of the filters of a workload's plugins, and the
// plugins whose configuration has credentials.
func PluginExtensions(s *snapshot.Snapshot, n proxy.Node, labels map[string]string) (out []units.Extension, pulled []*snapshot.WasmPlugin) {
	for _, p := range ChoosePlugins(s, n, labels) {
		if n.Relayed && snapshot.PullSecret(p) != "" {
			pulled = append(pulled, p)
		} else {
			out = append(out, units.Extension{Name: PluginName(p), Body: wire.EncodeSettings(pluginExtension(p, n.Relayed, nil)), Of: p.Key()})
		}
	}
	return out, pulled
}

// pluginExtension returns the configuration of a plugin's filter. If neither Envoy nor a relay can
// load the module, the filter refuses everything. A relay fetches it with credentials, if there are any.
func pluginExtension(p *snapshot.WasmPlugin, relayed bool, credentials *snapshot.PullCredentials) *corev3.TypedExtensionConfig {
	out := &corev3.TypedExtensionConfig{Name: PluginName(p)}
	_, isFile := snapshot.ModuleFile(p.Spec)
	code, isLua := snapshot.Lua(p)
	switch network := isNetwork(p.Spec); {
	case isLua:
		out.TypedConfig = wire.MustAny(&luav3.Lua{DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: code}}})
	case !isFile && !relayed:
		out.TypedConfig = wire.MustAny(rbacFilter(network, true))
	case network:
		out.TypedConfig = wire.MustAny(&networkwasmv3.Wasm{Config: pluginConfig(p, credentials)})
	default:
		out.TypedConfig = wire.MustAny(&httpwasmv3.Wasm{Config: pluginConfig(p, credentials)})
	}
	return out
}

// pluginModule sets the module of a plugin: a file, or one that a relay fetches.
func pluginModule(vm *wasmv3.VmConfig, p *snapshot.WasmPlugin, credentials *snapshot.PullCredentials) {
	if file, isFile := snapshot.ModuleFile(p.Spec); isFile {
		vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
			Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: file}},
		}}
		return
	}
	at := p.Spec.GetUrl()
	if !strings.Contains(at, "://") {
		at = "oci://" + at
	}
	vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
		HttpUri: &corev3.HttpUri{
			Uri: at, Timeout: durationpb.New(30 * time.Second),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}, // Envoy itself fetches nothing
		},
		Sha256: cmp.Or(strings.ToLower(p.Spec.GetSha256()), mesh.WasmNoChecksum),
	}}}
	if vm.EnvironmentVariables == nil {
		vm.EnvironmentVariables = &wasmv3.EnvironmentVariables{}
	}
	if vm.EnvironmentVariables.KeyValues == nil {
		vm.EnvironmentVariables.KeyValues = make(map[string]string)
	}
	variables := vm.EnvironmentVariables.KeyValues
	delete(variables, mesh.WasmPullSecret) // only a control plane may set it
	if credentials != nil {
		variables[mesh.WasmPullSecret] = string(credentials.Config.PEM())
	}
	variables[mesh.WasmPullPolicy] = p.Spec.GetImagePullPolicy().String()
	spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.Spec)
	if err != nil {
		panic(err) // it was decoded
	}
	sum := sha256.Sum256(spec)
	variables[mesh.WasmVersion] = hex.EncodeToString(sum[:8])
}

// pluginConfig returns how Envoy runs a plugin.
func pluginConfig(p *snapshot.WasmPlugin, credentials *snapshot.PullCredentials) *wasmv3.PluginConfig {
	vm := &wasmv3.VmConfig{Runtime: "envoy.wasm.runtime.v8"}
	if env := p.Spec.GetVmConfig().GetEnv(); len(env) > 0 {
		vm.EnvironmentVariables = &wasmv3.EnvironmentVariables{KeyValues: make(map[string]string)}
		for _, e := range env {
			if e.GetValueFrom() == extensionsv1alpha1.EnvValueSource_HOST {
				vm.EnvironmentVariables.HostEnvKeys = append(vm.EnvironmentVariables.HostEnvKeys, e.GetName())
			} else {
				vm.EnvironmentVariables.KeyValues[e.GetName()] = e.GetValue()
			}
		}
	}
	pluginModule(vm, p, credentials)
	out := &wasmv3.PluginConfig{
		Name: PluginName(p), RootId: p.Spec.GetPluginName(), Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: vm},
		FailurePolicy: failurePolicy(p.Spec.GetFailStrategy()),
	}
	if p.Spec.GetPluginConfig() != nil {
		// Unlike protojson, encoding/json has the same output for the same value.
		text, err := json.Marshal(p.Spec.GetPluginConfig().AsMap())
		if err != nil {
			panic("xdsgen: a JSON object that does not encode: " + err.Error())
		}
		out.Configuration = wire.MustAny(wrapperspb.String(string(text)))
	}
	return out
}

func failurePolicy(s extensionsv1alpha1.FailStrategy) wasmv3.FailurePolicy {
	switch s {
	case extensionsv1alpha1.FailStrategy_FAIL_OPEN:
		return wasmv3.FailurePolicy_FAIL_OPEN
	case extensionsv1alpha1.FailStrategy_FAIL_RELOAD:
		return wasmv3.FailurePolicy_FAIL_RELOAD
	default:
		return wasmv3.FailurePolicy_FAIL_CLOSED
	}
}

// rbacFilter returns the configuration of a filter that refuses or permits everything.
func rbacFilter(network, refuse bool) proto.Message {
	var rules *rbacconfigv3.RBAC
	if refuse {
		rules = &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_ALLOW} // nothing
	}
	if network {
		return &networkrbacv3.RBAC{StatPrefix: "wasm.", Rules: rules}
	}
	return &httprbacv3.RBAC{Rules: rules}
}

// Discovery returns the source of a plugin's configuration. Without a valid one, Envoy
// refuses requests, unless the plugin fails open.
func (p *PluginFilter) Discovery(g *wire.Generator) *corev3.ExtensionConfigSource {
	source := &corev3.ExtensionConfigSource{ConfigSource: wire.AdsSource()}
	messages := []proto.Message{&httpwasmv3.Wasm{}, &httprbacv3.RBAC{}}
	switch {
	case p.Name == rbac.FilterJWT:
		messages = []proto.Message{&jwtauthnv3.JwtAuthentication{}}
	case p.Lua:
		messages = []proto.Message{&luav3.Lua{}}
	case p.Network:
		messages = []proto.Message{&networkwasmv3.Wasm{}, &networkrbacv3.RBAC{}}
	}
	for _, m := range messages {
		source.TypeUrls = append(source.TypeUrls, "type.googleapis.com/"+string(m.ProtoReflect().Descriptor().FullName()))
	}
	if p.Open {
		source.DefaultConfig = g.Any(rbacFilter(p.Network, false))
	}
	return source
}
