package relay

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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

// TestReplacesPlugins: filters that permit or refuse everything replace the plugins whose
// modules cannot be loaded, in both variants, and all else stays.
func TestReplacesPlugins(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.wasm"), filepath.Join(dir, "bad.wasm")
	check(t, os.WriteFile(good, []byte("\x00asm\x01\x00\x00\x00"), 0o600))
	check(t, os.WriteFile(bad, []byte("#!/bin/sh"), 0o600))
	config := func(file string, policy wasmv3.FailurePolicy) *wasmv3.PluginConfig {
		return &wasmv3.PluginConfig{FailurePolicy: policy, Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
				Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: file}},
			}},
		}}}
	}
	packed := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		check(t, err)
		return a
	}
	for name, tc := range map[string]struct {
		name    string
		in      proto.Message
		replace proto.Message // nil: the extension stays
		refuses bool
	}{
		"good module":    {pluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(good, wasmv3.FailurePolicy_FAIL_CLOSED)}, nil, false},
		"no file":        {pluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(dir+"/none", wasmv3.FailurePolicy_FAIL_CLOSED)}, &httprbacv3.RBAC{}, true},
		"fail open":      {pluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(dir+"/none", wasmv3.FailurePolicy_FAIL_OPEN)}, &httprbacv3.RBAC{}, false},
		"other file":     {pluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(bad, wasmv3.FailurePolicy_FAIL_RELOAD)}, &httprbacv3.RBAC{}, true},
		"directory":      {pluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(dir, wasmv3.FailurePolicy_FAIL_CLOSED)}, &httprbacv3.RBAC{}, true},
		"network plugin": {pluginPrefix + "a.b", &networkwasmv3.Wasm{Config: config(bad, wasmv3.FailurePolicy_FAIL_CLOSED)}, &networkrbacv3.RBAC{}, true},
		"of a user":      {"a", &httpwasmv3.Wasm{Config: config(bad, wasmv3.FailurePolicy_FAIL_CLOSED)}, nil, false},
		"no plugin":      {pluginPrefix + "a.b", &httprbacv3.RBAC{}, nil, false},
	} {
		in := packed(&corev3.TypedExtensionConfig{Name: tc.name, TypedConfig: packed(tc.in)})
		for _, v := range []xdswire.Variant{xdswire.Delta, xdswire.SotW} {
			var response proto.Message = &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{in}}
			if v == xdswire.Delta {
				response = &discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: tc.name, Resource: in}}}
			}
			m := &message{mem.BufferSlice{mem.SliceBuffer(encoded(t, response))}}
			s := &session{variant: v, log: slog.New(slog.DiscardHandler)}
			check(t, s.replacePlugins(m))
			out, err := decodeResources(v, m.bytes())
			check(t, err)
			extension := &corev3.TypedExtensionConfig{}
			check(t, out[0].UnmarshalTo(extension))
			got := extension.GetTypedConfig()
			if tc.replace == nil {
				if !proto.Equal(out[0], in) {
					t.Errorf("%s: it is now %v", name, extension)
				}
				continue
			}
			refuses := false
			switch {
			case !got.MessageIs(tc.replace):
				t.Errorf("%s: it is %s", name, got.GetTypeUrl())
			case got.MessageIs(&httprbacv3.RBAC{}):
				filter := &httprbacv3.RBAC{}
				check(t, got.UnmarshalTo(filter))
				refuses = filter.GetRules() != nil
			default:
				filter := &networkrbacv3.RBAC{}
				check(t, got.UnmarshalTo(filter))
				refuses = filter.GetRules() != nil
			}
			if refuses != tc.refuses {
				t.Errorf("%s: it refuses: %v", name, refuses)
			}
		}
	}
}
