package plugins

import (
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// PullRight is the right of a caller to the credentials of registries.
type PullRight uint8

const (
	// PullUndecided holds back the plugins that need credentials until the right is known.
	PullUndecided PullRight = iota
	// PullDenied gives the plugins without credentials.
	PullDenied
	// PullAllowed gives the plugins with credentials.
	PullAllowed
)

// PulledPlugins is the view of the extensions of plugins with imagePullSecret for one workload.
// Agents fetch the modules with the credentials in them. It is part of no other view, because
// not every proxy that runs the plugins may read the Secrets. The zero rights show nothing.
type PulledPlugins struct {
	Plugins wire.List[*snapshot.WasmPlugin]
	// Cluster and namespace are the authenticated location of the caller.
	Cluster   mesh.ClusterID
	Namespace string
	right     PullRight
}

// For returns the view for a caller. Streams of the same location and right share it.
func (v PulledPlugins) For(caller mesh.Caller, right PullRight) PulledPlugins {
	if caller.Identity == (mesh.Identity{}) || caller.Cluster == "" {
		right = min(right, PullDenied)
	}
	v.Cluster, v.Namespace, v.right = caller.Cluster, caller.Identity.Namespace, right
	return v
}

// Type implements View.
func (v PulledPlugins) Type() string { return xdswire.ExtensionType }

// Keys implements View.
func (v PulledPlugins) Keys() units.Keys {
	k := units.Keys{FixedFacts: snapshot.SecretFacts}
	for p := range v.Plugins.All {
		k.Listed = append(k.Listed, units.Key{Name: PluginName(p)})
	}
	return k
}

// Unit implements View.
func (v PulledPlugins) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	for p := range v.Plugins.All {
		if PluginName(p) == k.Name && v.right != PullUndecided {
			credentials, _ := v.credentials(s, p) // without them, the agent uses its own
			return pulledPluginUnit{p, credentials}
		}
	}
	return nil
}

// Check returns why the workload gets plugins without the credentials of their registries, nil if
// it gets all of them. denied is the reason if the caller has no right to them.
func (v PulledPlugins) Check(s *snapshot.Snapshot, denied error) error {
	var errs []error
	if v.right == PullUndecided {
		return nil // nothing to report yet
	}
	for p := range v.Plugins.All {
		_, err := v.credentials(s, p)
		if errors.Is(err, units.ErrKeysDenied) && denied != nil {
			err = fmt.Errorf("%w: %w", err, denied)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("imagePullSecret of %s %s/%s: %w", p.Kind, p.Namespace, p.Name, err))
		}
	}
	return errors.Join(errs...)
}

// credentials returns the credentials for the module of a plugin if the caller may get them.
func (v PulledPlugins) credentials(s *snapshot.Snapshot, p *snapshot.WasmPlugin) (*snapshot.PullCredentials, error) {
	name := snapshot.PullSecret(p)
	switch {
	case p.Namespace != v.Namespace:
		return nil, fmt.Errorf("secret %s/%s is in another namespace than the proxy, which is in %s", p.Namespace, name, v.Namespace)
	case v.right != PullAllowed:
		return nil, units.ErrKeysDenied
	}
	secret := s.Secrets.Get(snapshot.SecretKey(v.Cluster, v.Namespace, name))
	switch {
	case secret == nil:
		return nil, fmt.Errorf("secret %s/%s of cluster %s not found", v.Namespace, name, v.Cluster)
	case secret.Pull == nil:
		return nil, fmt.Errorf("secret %s/%s of cluster %s is not of type kubernetes.io/dockerconfigjson", v.Namespace, name, v.Cluster)
	}
	return secret.Pull, nil
}

// pulledPluginUnit generates the extension of a plugin.
type pulledPluginUnit struct {
	plugin      *snapshot.WasmPlugin
	credentials *snapshot.PullCredentials // nil for none
}

func (u pulledPluginUnit) Type() string { return xdswire.ExtensionType }

func (u pulledPluginUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	extension := pluginExtension(u.plugin, true, u.credentials)
	return []*xdswire.Resource{enc.Raw(xdswire.ExtensionType, extension.GetName(), []byte(wire.EncodeSettings(extension)))}, nil
}

// WithoutCredentials returns an extension in which a placeholder replaces the credentials of a
// registry. No error contains a part of the extension.
func WithoutCredentials(a *anypb.Any) (*anypb.Any, error) {
	extension := &corev3.TypedExtensionConfig{}
	if a.UnmarshalTo(extension) != nil {
		return nil, errors.New("an extension cannot be decoded")
	}
	http, network := &httpwasmv3.Wasm{}, &networkwasmv3.Wasm{}
	var filter proto.Message
	var config func() *wasmv3.PluginConfig
	switch content := extension.GetTypedConfig(); {
	case content.MessageIs(http):
		filter, config = http, http.GetConfig
	case content.MessageIs(network):
		filter, config = network, network.GetConfig
	default:
		return a, nil
	}
	if extension.GetTypedConfig().UnmarshalTo(filter) != nil {
		return nil, fmt.Errorf("extension %s cannot be decoded", extension.GetName())
	}
	variables := config().GetVmConfig().GetEnvironmentVariables().GetKeyValues()
	if variables[mesh.WasmPullSecret] == "" {
		return a, nil
	}
	variables[mesh.WasmPullSecret] = "[redacted]"
	extension.TypedConfig = wire.MustAny(filter)
	return wire.MustAny(extension), nil
}
