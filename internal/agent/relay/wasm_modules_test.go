package relay

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/agent/wasm"
	"github.com/meshctl/meshctl/internal/mesh"
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
		"good module":    {mesh.PluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(good, wasmv3.FailurePolicy_FAIL_CLOSED)}, nil, false},
		"no file":        {mesh.PluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(dir+"/none", wasmv3.FailurePolicy_FAIL_CLOSED)}, &httprbacv3.RBAC{}, true},
		"fail open":      {mesh.PluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(dir+"/none", wasmv3.FailurePolicy_FAIL_OPEN)}, &httprbacv3.RBAC{}, false},
		"other file":     {mesh.PluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(bad, wasmv3.FailurePolicy_FAIL_RELOAD)}, &httprbacv3.RBAC{}, true},
		"directory":      {mesh.PluginPrefix + "a.b", &httpwasmv3.Wasm{Config: config(dir, wasmv3.FailurePolicy_FAIL_CLOSED)}, &httprbacv3.RBAC{}, true},
		"network plugin": {mesh.PluginPrefix + "a.b", &networkwasmv3.Wasm{Config: config(bad, wasmv3.FailurePolicy_FAIL_CLOSED)}, &networkrbacv3.RBAC{}, true},
		"of a user":      {"a", &httpwasmv3.Wasm{Config: config(bad, wasmv3.FailurePolicy_FAIL_CLOSED)}, nil, false},
		"no plugin":      {mesh.PluginPrefix + "a.b", &httprbacv3.RBAC{}, nil, false},
	} {
		in := packed(&corev3.TypedExtensionConfig{Name: tc.name, TypedConfig: packed(tc.in)})
		for _, v := range []xdswire.Variant{xdswire.Delta, xdswire.SotW} {
			var response proto.Message = &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{in}}
			if v == xdswire.Delta {
				response = &discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: tc.name, Resource: in}}}
			}
			m := &message{mem.BufferSlice{mem.SliceBuffer(encoded(t, response))}}
			s := &session{Relay: &Relay{}, variant: v, log: slog.New(slog.DiscardHandler)}
			_, err := s.preparePlugins(t.Context(), m)
			check(t, err)
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

// TestFetchesModules: a plugin whose module cannot be fetched is replaced until it can be. Then the
// relay asks for the plugin again, and Envoy gets it with a file, without the variables for the agent.
func TestFetchesModules(t *testing.T) {
	t.Parallel()
	var there atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !there.Load() {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("\x00asm\x01\x00\x00\x00"))
	}))
	defer server.Close()
	store := newStore(t, server)
	for _, v := range []xdswire.Variant{xdswire.Delta, xdswire.SotW} {
		there.Store(false)
		s := &session{
			Relay: &Relay{Modules: store, Jitter: func() float64 { return 0 }, Log: slog.New(slog.DiscardHandler)}, variant: v,
			log: slog.New(slog.DiscardHandler), modules: map[string]func(){}, fetched: make(chan string),
		}
		prepare := func() ([]pluginModule, *anypb.Any) {
			plugin := remotePlugin(t, server.URL, v.String())
			var response proto.Message = &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{plugin}}
			if v == xdswire.Delta {
				response = &discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: mesh.PluginPrefix + "a.b", Resource: plugin}}}
			}
			m := &message{mem.BufferSlice{mem.SliceBuffer(encoded(t, response))}}
			modules, err := s.preparePlugins(t.Context(), m)
			check(t, err)
			out, err := decodeResources(v, m.bytes())
			check(t, err)
			extension := &corev3.TypedExtensionConfig{}
			check(t, out[0].UnmarshalTo(extension))
			return modules, extension.GetTypedConfig()
		}
		isPlugin := func(content *anypb.Any) {
			t.Helper()
			got := &httpwasmv3.Wasm{}
			check(t, content.UnmarshalTo(got))
			vm := got.GetConfig().GetVmConfig()
			if text, err := os.ReadFile(vm.GetCode().GetLocal().GetFilename()); err != nil || len(text) != 8 {
				t.Errorf("module %q, %v", text, err)
			}
			if variables := vm.GetEnvironmentVariables().GetKeyValues(); len(variables) != 1 || variables["MORE"] != "x" {
				t.Errorf("the module gets the variables %v", variables)
			}
		}
		modules, content := prepare()
		if !content.MessageIs(&httprbacv3.RBAC{}) || modules[0].release != nil {
			t.Fatalf("without a module: %s", content.GetTypeUrl())
		}
		s.keepModules(t.Context(), &envelope{}, modules)
		there.Store(true)
		if got := <-s.fetched; got != mesh.PluginPrefix+"a.b" {
			t.Errorf("fetched %q", got)
		}
		modules, content = prepare()
		isPlugin(content)
		s.keepModules(t.Context(), &envelope{}, modules)
		s.dropModule(mesh.PluginPrefix + "a.b")
		s.tasks.Wait()
	}
}

// TestModulesDelayNoOtherType: while a module is fetched, other types pass.
func TestModulesDelayNoOtherType(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		_, _ = w.Write([]byte("\x00asm\x01\x00\x00\x00"))
	}))
	defer server.Close()
	store := newStore(t, server)
	plane := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(plane, &pluginPlane{plugin: remotePlugin(t, server.URL, "1")})
	conn := dial(t, listen(t, func(l net.Listener) error { return plane.Serve(l) }, plane.Stop))
	r := &Relay{
		Call: func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
			return do(ctx, conn)
		},
		Modules: store, Log: slog.New(slog.DiscardHandler), Jitter: func() float64 { return 0 },
	}
	ctx, stop := context.WithCancel(context.Background())
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, listen(t, func(l net.Listener) error { return r.Serve(ctx, l, nil) }, stop)))
	stream, err := ads.DeltaAggregatedResources(t.Context())
	check(t, err)
	check(t, stream.Send(&dreq{Node: testNode(), TypeUrl: xdswire.ExtensionType, ResourceNamesSubscribe: []string{mesh.PluginPrefix + "a.b"}}))
	check(t, stream.Send(&dreq{TypeUrl: xdswire.ClusterType}))
	got, err := stream.Recv()
	check(t, err)
	if got.GetTypeUrl() != xdswire.ClusterType {
		t.Errorf("first comes %s", got.GetTypeUrl())
	}
	close(release)
	got, err = stream.Recv()
	check(t, err)
	if body := got.GetResources()[0].GetResource().GetValue(); !bytes.Contains(body, []byte(store.Dir)) || bytes.Contains(body, []byte(server.URL)) {
		t.Errorf("the proxy gets %q", body)
	}
	check(t, stream.CloseSend())
}

// pluginPlane sends a plugin, and nothing for other types.
type pluginPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	plugin *anypb.Any
}

func (p *pluginPlane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		out := &dresp{TypeUrl: r.GetTypeUrl(), Nonce: "1"}
		if r.GetTypeUrl() == xdswire.ExtensionType {
			out.Resources = []*discoveryv3.Resource{{Name: mesh.PluginPrefix + "a.b", Version: "1", Resource: p.plugin}}
		}
		if err := s.Send(out); err != nil {
			return err
		}
	}
}

// newStore returns a store that may ask a server.
func newStore(t *testing.T, server *httptest.Server) *wasm.Store {
	t.Helper()
	store, err := wasm.New(t.Context(), wasm.Config{
		Dir: filepath.Join(t.TempDir(), "wasm"), Insecure: []string{strings.TrimPrefix(server.URL, "http://")},
		Timeout: deadline, Expiry: time.Hour, Purge: time.Hour, Now: time.Now,
	})
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	t.Cleanup(func() { stop(); check(t, <-ended) })
	return store
}

// remotePlugin returns an extension whose module is at a URL.
func remotePlugin(t *testing.T, at, version string) *anypb.Any {
	t.Helper()
	vm := &wasmv3.VmConfig{
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			HttpUri: &corev3.HttpUri{Uri: at}, Sha256: mesh.WasmNoChecksum,
		}}},
		EnvironmentVariables: &wasmv3.EnvironmentVariables{KeyValues: map[string]string{
			mesh.WasmPullSecret: "{}", mesh.WasmVersion: version, mesh.WasmPullPolicy: "Always", "MORE": "x",
		}},
	}
	return anyOf(t, &corev3.TypedExtensionConfig{Name: mesh.PluginPrefix + "a.b", TypedConfig: anyOf(t, &httpwasmv3.Wasm{
		Config: &wasmv3.PluginConfig{Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: vm}},
	})})
}

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	check(t, err)
	return a
}
