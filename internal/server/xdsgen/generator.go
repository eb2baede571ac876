package xdsgen

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// generator collects the resources of a Unit and keeps the first error. After an error
// its methods still return messages, which are incomplete and never encoded, so that
// only the end of a generation checks for errors.
type generator struct {
	enc *xdswire.Encoder
	out []*xdswire.Resource
	err error
}

// resources returns the collected resources, or the first error.
func (g *generator) resources() ([]*xdswire.Resource, error) {
	if g.err != nil {
		return nil, g.err
	}
	return g.out, nil
}

// fail keeps an error, which may be nil.
func (g *generator) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// add encodes a message as a resource.
func (g *generator) add(typeURL, name string, m proto.Message) {
	if g.err != nil {
		return
	}
	r, err := g.enc.Resource(typeURL, name, m)
	g.out, g.err = append(g.out, r), err
}

func (g *generator) cluster(c *clusterv3.Cluster) { g.add(xdswire.ClusterType, c.GetName(), c) }

func (g *generator) listener(l *listenerv3.Listener) { g.add(xdswire.ListenerType, l.GetName(), l) }

// any packs a message into an Any.
func (g *generator) any(m proto.Message) *anypb.Any {
	a, err := xdswire.Any(m)
	g.fail(err)
	return a
}

// mustAny packs a message of constants and valid UTF-8, which always encodes.
func mustAny(m proto.Message) *anypb.Any {
	a, err := xdswire.Any(m)
	if err != nil {
		panic("xdsgen: a message that does not encode: " + err.Error())
	}
	return a
}

// networkFilter returns a filter. Its configuration, whose last fields may be encoded before, is
// encoded, and must not be read or changed.
func (g *generator) networkFilter(name string, m proto.Message, encoded ...byte) *listenerv3.Filter {
	const fieldConfig = 4 // of Filter
	config, err := xdswire.PackedField(fieldConfig, m, encoded...)
	g.fail(err)
	f := &listenerv3.Filter{Name: name}
	f.ProtoReflect().SetUnknown(config)
	return f
}

func (g *generator) listenerFilter(name string, m proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: g.any(m)}}
}

// transportSocket returns a transport socket in one allocation, like networkFilter.
func (g *generator) transportSocket(name string, m proto.Message) *corev3.TransportSocket {
	var t struct {
		socket corev3.TransportSocket
		config corev3.TransportSocket_TypedConfig
		packed anypb.Any
	}
	g.fail(xdswire.Pack(&t.packed, m))
	t.config.TypedConfig = &t.packed
	t.socket.Name, t.socket.ConfigType = name, &t.config
	return &t.socket
}
