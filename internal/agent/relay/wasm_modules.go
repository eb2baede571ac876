package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/agent/wasm"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxModuleWait bounds the time for which extensions wait for modules that are fetched. Then
// failStrategy counts until they are.
const maxModuleWait = 10 * time.Second

// Intervals at which the relay tries again to fetch a module.
const (
	minFetchRetry = 2 * time.Second
	maxFetchRetry = 5 * time.Minute
)

// pluginModule is the use of a fetched module by a plugin.
type pluginModule struct {
	extension string // its name
	module    wasm.Module
	release   func() // nil while there is no module
}

// usesPlugins reports whether a response has plugins, or removes some. Most have only policies.
func usesPlugins(m *message) bool {
	return bytes.Contains(m.bytes(), []byte(mesh.PluginPrefix)) || bytes.Contains(m.bytes(), []byte(mesh.TrafficExtensionPrefix))
}

// preparePlugins gives the plugins in a response files in the place of modules to fetch. It
// replaces each plugin whose module Envoy cannot load by a filter that permits or refuses
// everything, as the plugin asks: Envoy would refuse the plugin, and then every new or changed
// listener with it. It returns the modules that were to fetch.
func (s *session) preparePlugins(ctx context.Context, m *message) ([]pluginModule, error) {
	if !usesPlugins(m) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxModuleWait)
	defer cancel()
	var response proto.Message
	var resources []*anypb.Any
	if s.variant == xdswire.Delta {
		r := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(m.bytes(), r); err != nil {
			return nil, err
		}
		for _, one := range r.GetResources() {
			resources = append(resources, one.GetResource())
		}
		response = r
	} else {
		r := &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(m.bytes(), r); err != nil {
			return nil, err
		}
		resources, response = r.GetResources(), r
	}
	modules := make([]*pluginModule, len(resources))
	replaced := make([]bool, len(resources))
	results := make([]string, len(resources))
	if s.Modules != nil {
		began := s.Modules.Now()
		defer func() { s.Modules.Converted(results, s.Modules.Now().Sub(began)) }()
	}
	var tasks errgroup.Group // modules are fetched at the same time
	for i, a := range resources {
		tasks.Go(func() (err error) {
			modules[i], replaced[i], err = s.preparePlugin(ctx, a)
			results[i] = resultOf(modules[i], err)
			return err
		})
	}
	err := tasks.Wait()
	var used []pluginModule
	for _, one := range modules {
		if one != nil {
			used = append(used, *one)
		}
	}
	if err == nil && slices.Contains(replaced, true) {
		var text []byte
		text, err = proto.Marshal(response)
		m.data.Free()
		m.data = mem.BufferSlice{mem.SliceBuffer(text)}
	}
	if err != nil {
		releaseAll(used)
		return nil, err
	}
	return used, nil
}

// resultOf returns the label of an extension in the metrics.
func resultOf(used *pluginModule, err error) string {
	switch {
	case err != nil:
		return "unmarshal_failure"
	case used == nil:
		return "no_remote_load"
	case used.release == nil:
		return "fetch_failure"
	}
	return "success"
}

func releaseAll(modules []pluginModule) {
	for _, m := range modules {
		if m.release != nil {
			m.release()
		}
	}
}

// preparePlugin replaces the content of an extension, and reports whether it did. The module is
// nil if there is none to fetch.
func (s *session) preparePlugin(ctx context.Context, a *anypb.Any) (used *pluginModule, replaced bool, err error) {
	extension := &corev3.TypedExtensionConfig{}
	if a == nil || a.UnmarshalTo(extension) != nil {
		return nil, false, nil
	}
	plugin, isPlugin := mesh.CutPluginPrefix(extension.GetName())
	if !isPlugin {
		return nil, false, nil
	}
	var filter proto.Message
	var config *wasmv3.PluginConfig
	http, network := &httpwasmv3.Wasm{}, &networkwasmv3.Wasm{}
	switch content := extension.GetTypedConfig(); {
	case content.MessageIs(http):
		err, filter = content.UnmarshalTo(http), http
		config = http.GetConfig()
	case content.MessageIs(network):
		err, filter = content.UnmarshalTo(network), network
		config = network.GetConfig()
	}
	vm := config.GetVmConfig()
	if err != nil || vm.GetCode() == nil {
		return nil, false, err
	}
	file := vm.GetCode().GetLocal().GetFilename()
	remote := vm.GetCode().GetRemote()
	if file == "" && remote == nil {
		return nil, false, nil
	}
	log := s.log.With("plugin", plugin)
	var fault error
	if remote != nil {
		used = &pluginModule{extension: extension.GetName(), module: moduleOf(vm)}
		if file, used.release, fault = s.fetchModule(ctx, used.module); fault == nil {
			vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
				Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: file}},
			}}
		}
	} else {
		fault = moduleFault(file)
	}
	switch {
	case fault != nil:
		effect := "requests and connections that need it are refused"
		rules := &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_ALLOW} // nothing
		if config.GetFailurePolicy() == wasmv3.FailurePolicy_FAIL_OPEN {
			rules, effect = nil, "Envoy works without it"
		}
		log.Warn("the module of a plugin cannot be loaded", "error", fault, "effect", effect)
		if filter = proto.Message(&httprbacv3.RBAC{Rules: rules}); config == network.GetConfig() {
			filter = &networkrbacv3.RBAC{StatPrefix: "wasm.", Rules: rules}
		}
	case remote == nil:
		return nil, false, nil
	}
	if err := extension.GetTypedConfig().MarshalFrom(filter); err != nil {
		return used, false, err
	}
	return used, true, a.MarshalFrom(extension)
}

// fetchModule returns the file of a module.
func (s *session) fetchModule(ctx context.Context, m wasm.Module) (file string, release func(), err error) {
	if s.Modules == nil {
		return "", nil, errors.New("the agent fetches no modules")
	}
	return s.Modules.Use(ctx, m)
}

// moduleOf returns the module to fetch for a VM, and removes the variables that are not for it.
func moduleOf(vm *wasmv3.VmConfig) wasm.Module {
	remote := vm.GetCode().GetRemote()
	out := wasm.Module{URL: remote.GetHttpUri().GetUri()}
	if sum := remote.GetSha256(); sum != mesh.WasmNoChecksum {
		out.SHA256 = sum
	}
	variables := vm.GetEnvironmentVariables().GetKeyValues()
	if policy := variables[mesh.WasmPullPolicy]; policy == "Always" || policy != "IfNotPresent" && wasm.IsLatest(out.URL) {
		out.Version = cmp.Or(variables[mesh.WasmVersion], "unknown")
	}
	if secret := variables[mesh.WasmPullSecret]; secret != "" {
		out.Credentials = []byte(secret)
	}
	for _, name := range []string{mesh.WasmPullPolicy, mesh.WasmPullSecret, mesh.WasmVersion} {
		delete(variables, name)
	}
	return out
}

// keepModules keeps the modules of the plugins in a response, until their next configuration
// arrives. It fetches those that are missing.
func (s *session) keepModules(ctx context.Context, e *envelope, modules []pluginModule) {
	for _, h := range e.held {
		s.dropModule(h.name)
	}
	for _, name := range e.removed {
		s.dropModule(name)
	}
	if s.variant == xdswire.SotW { // it has all
		for name := range s.modules {
			s.dropModule(name)
		}
	}
	for _, m := range modules {
		s.dropModule(m.extension)
		if m.release != nil {
			s.modules[m.extension] = m.release
			continue
		}
		if s.Modules == nil {
			continue
		}
		waiting, cancel := context.WithCancel(ctx)
		s.modules[m.extension] = cancel
		s.tasks.Go(func() { s.awaitModule(waiting, m) })
	}
}

func (s *session) dropModule(extension string) {
	if drop := s.modules[extension]; drop != nil {
		drop()
		delete(s.modules, extension)
	}
}

// awaitModule fetches a module that is missing, until there is one or ctx ends.
func (s *session) awaitModule(ctx context.Context, m pluginModule) {
	for wait := minFetchRetry; ; wait = min(2*wait, maxFetchRetry) {
		_, release, err := s.Modules.Use(ctx, m.module)
		if err == nil {
			select {
			case s.fetched <- m.extension:
			case <-ctx.Done():
			}
			release()
			return
		}
		select {
		case <-time.After(wait/2 + time.Duration(s.Jitter()*float64(wait/2))):
		case <-ctx.Done():
			return
		}
	}
}

// takeFetched requests an extension again whose module is there now.
func (s *session) takeFetched(extension string) {
	s.dropModule(extension)
	sub := s.subs[xdswire.ExtensionType]
	if s.up == nil || sub == nil {
		return // the next stream begins with all that is not accepted
	}
	if !sub.content.again(extension) {
		s.up.cancel(errors.New("the module of a plugin is there now: all extensions are requested again"))
		return
	}
	sub.changed = true
	s.enqueue(sub)
}

// moduleFault returns why Envoy cannot load a module, or nil.
func moduleFault(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	notModule := errors.New(path + " is not a WebAssembly module")
	if !info.Mode().IsRegular() {
		return notModule
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, len(wasm.Magic))
	if _, err := io.ReadFull(f, head); err != nil || string(head) != wasm.Magic {
		return notModule
	}
	return nil
}
