package relay

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// pluginPrefix starts the names of extensions that WasmPlugins configure. Their filters accept
// RBAC, too.
const pluginPrefix = "extensions.istio.io/wasmplugin/"

// replacePlugins replaces each plugin in a response whose module Envoy cannot load by a filter
// that permits or refuses everything, as the plugin asks. Envoy would refuse the plugin, and then
// every new or changed listener with it.
func (s *session) replacePlugins(m *message) error {
	if !bytes.Contains(m.bytes(), []byte(pluginPrefix)) {
		return nil // most responses have only policies
	}
	var response proto.Message
	var resources []*anypb.Any
	if s.variant == xdswire.Delta {
		r := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(m.bytes(), r); err != nil {
			return err
		}
		for _, one := range r.GetResources() {
			resources = append(resources, one.GetResource())
		}
		response = r
	} else {
		r := &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(m.bytes(), r); err != nil {
			return err
		}
		resources, response = r.GetResources(), r
	}
	replaced := false
	for _, a := range resources {
		did, err := s.replacePlugin(a)
		if err != nil {
			return err
		}
		replaced = replaced || did
	}
	if !replaced {
		return nil
	}
	text, err := proto.Marshal(response)
	if err != nil {
		return err
	}
	m.data.Free()
	m.data = mem.BufferSlice{mem.SliceBuffer(text)}
	return nil
}

// replacePlugin replaces the content of an extension, and reports whether it did.
func (s *session) replacePlugin(a *anypb.Any) (bool, error) {
	extension := &corev3.TypedExtensionConfig{}
	if a == nil || a.UnmarshalTo(extension) != nil || !strings.HasPrefix(extension.GetName(), pluginPrefix) {
		return false, nil
	}
	var config *wasmv3.PluginConfig
	http, network := &httpwasmv3.Wasm{}, &networkwasmv3.Wasm{}
	switch content := extension.GetTypedConfig(); {
	case content.MessageIs(http):
		if err := content.UnmarshalTo(http); err != nil {
			return false, err
		}
		config = http.GetConfig()
	case content.MessageIs(network):
		if err := content.UnmarshalTo(network); err != nil {
			return false, err
		}
		config = network.GetConfig()
	}
	file := config.GetVmConfig().GetCode().GetLocal().GetFilename()
	if file == "" {
		return false, nil
	}
	fault := moduleFault(file)
	if fault == nil {
		return false, nil
	}
	rules, effect := &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_ALLOW}, "requests and connections that need it are refused" // ALLOW nothing
	if config.GetFailurePolicy() == wasmv3.FailurePolicy_FAIL_OPEN {
		rules, effect = nil, "Envoy works without it"
	}
	s.log.Warn("the module of a plugin cannot be loaded", "plugin", strings.TrimPrefix(extension.GetName(), pluginPrefix), "error", fault, "effect", effect)
	var filter proto.Message = &httprbacv3.RBAC{Rules: rules}
	if extension.GetTypedConfig().MessageIs(network) {
		filter = &networkrbacv3.RBAC{StatPrefix: "wasm.", Rules: rules}
	}
	if err := extension.GetTypedConfig().MarshalFrom(filter); err != nil {
		return false, err
	}
	return true, a.MarshalFrom(extension)
}

// moduleFault returns why Envoy cannot load a module, or nil.
func moduleFault(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	start := []byte("\x00asm")
	notModule := errors.New(path + " is not a WebAssembly module")
	if !info.Mode().IsRegular() {
		return notModule
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, len(start))
	if _, err := io.ReadFull(f, head); err != nil || !bytes.Equal(head, start) {
		return notModule
	}
	return nil
}
