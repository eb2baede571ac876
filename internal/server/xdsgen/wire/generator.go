// Package wire collects the resources of a unit, and makes the messages that many resources contain.
package wire

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// Generator collects the resources of a Unit and keeps the first error. After an error
// its methods still return messages, which are incomplete and never encoded, so that
// only the end of a generation checks for errors.
type Generator struct {
	Enc *xdswire.Encoder
	Out []*xdswire.Resource
	Err error
}

// Resources returns the collected resources, or the first error.
func (g *Generator) Resources() ([]*xdswire.Resource, error) {
	if g.Err != nil {
		return nil, g.Err
	}
	return g.Out, nil
}

// Fail keeps an error, which may be nil.
func (g *Generator) Fail(err error) {
	if g.Err == nil {
		g.Err = err
	}
}

// Add encodes a message as a resource.
func (g *Generator) Add(typeURL, name string, m proto.Message) {
	if g.Err != nil {
		return
	}
	r, err := g.Enc.Resource(typeURL, name, m)
	g.Out, g.Err = append(g.Out, r), err
}

// Cluster adds a cluster.
func (g *Generator) Cluster(c *clusterv3.Cluster) { g.Add(xdswire.ClusterType, c.GetName(), c) }

// Listener adds a listener.
func (g *Generator) Listener(l *listenerv3.Listener) { g.Add(xdswire.ListenerType, l.GetName(), l) }

// Any packs a message into an Any.
func (g *Generator) Any(m proto.Message) *anypb.Any {
	a, err := xdswire.Any(m)
	g.Fail(err)
	return a
}

// MustAny packs a message of constants and valid UTF-8, which always encodes.
func MustAny(m proto.Message) *anypb.Any {
	a, err := xdswire.Any(m)
	if err != nil {
		panic("xdsgen: a message that does not encode: " + err.Error())
	}
	return a
}

// NetworkFilter returns a filter. Its configuration, whose last fields may be encoded before, is
// encoded, and must not be read or changed.
func (g *Generator) NetworkFilter(name string, m proto.Message, encoded ...byte) *listenerv3.Filter {
	const fieldConfig = 4 // of Filter
	config, err := xdswire.PackedField(fieldConfig, m, encoded...)
	g.Fail(err)
	f := &listenerv3.Filter{Name: name}
	f.ProtoReflect().SetUnknown(config)
	return f
}

// ListenerFilter returns a filter of a listener.
func (g *Generator) ListenerFilter(name string, m proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: g.Any(m)}}
}

// TransportSocket returns a transport socket in one allocation, like networkFilter.
func (g *Generator) TransportSocket(name string, m proto.Message) *corev3.TransportSocket {
	var t struct {
		socket corev3.TransportSocket
		config corev3.TransportSocket_TypedConfig
		packed anypb.Any
	}
	g.Fail(xdswire.Pack(&t.packed, m))
	t.config.TypedConfig = &t.packed
	t.socket.Name, t.socket.ConfigType = name, &t.config
	return &t.socket
}
