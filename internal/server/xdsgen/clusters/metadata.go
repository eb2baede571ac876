package clusters

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// Metadata is encoded here. The ordinary encoder takes as long for the maps of the metadata as for
// the rest of a cluster. A map must get its entries in the order of their keys, as from that encoder.

// Field numbers of google.protobuf.Value and ListValue.
const (
	fieldText     = 3
	fieldTrue     = 4
	fieldFields   = 5
	fieldElements = 6
	fieldElement  = 1 // of ListValue
)

// encodedMetadata returns metadata that is encoded. It must not be read or changed.
func encodedMetadata(b []byte) *corev3.Metadata {
	m := new(corev3.Metadata)
	m.ProtoReflect().SetUnknown(b)
	return m
}

// ConfigMetadata names a VirtualService, which commands show.
func ConfigMetadata(v *snapshot.VirtualService) *corev3.Metadata {
	return encodedMetadata(appendEntry(make([]byte, 0, 256), "istio", func(b []byte) []byte {
		return appendText(b, "config", "/apis/networking.istio.io/v1/namespaces/"+v.Namespace+"/virtual-service/"+v.Name)
	}))
}

// ServiceID names a service in metadata.
type ServiceID struct{ Name, Space, Host string }

// ServiceMetadata names services.
func ServiceMetadata(services ...ServiceID) *corev3.Metadata {
	return encodedMetadata(appendEntry(nil, "istio", func(b []byte) []byte { return appendServices(b, services...) }))
}

// Metadata names the service, the DestinationRule and the subset of a cluster, which commands show.
// alpn may be empty.
func (u ClusterOf) Metadata(alpn string) *corev3.Metadata {
	b := appendEntry(make([]byte, 0, 256), "istio", func(b []byte) []byte {
		if u.Rule != nil {
			b = appendText(b, "config", "/apis/networking.istio.io/v1/namespaces/"+u.Rule.Namespace+"/destination-rule/"+u.Rule.Name)
		}
		if u.Service.External {
			b = appendEntry(b, "external", func(b []byte) []byte {
				return protowire.AppendVarint(protowire.AppendTag(b, fieldTrue, protowire.VarintType), 1)
			})
		}
		b = appendServices(b, ServiceID{u.Service.Name, u.Service.Namespace, u.Service.Host})
		if subset := u.subset.GetName(); subset != "" {
			b = appendText(b, "subset", subset)
		}
		return b
	})
	if alpn != "" {
		b = appendEntry(b, mesh.MetadataNamespace, func(b []byte) []byte { return appendText(b, filters.MetadataALPN, alpn) })
	}
	return encodedMetadata(b)
}

// appendServices appends the field "services" of a Struct.
func appendServices(b []byte, services ...ServiceID) []byte {
	return appendEntry(b, "services", func(b []byte) []byte {
		return appendMessage(b, fieldElements, func(b []byte) []byte {
			for _, svc := range services {
				b = appendMessage(b, fieldElement, func(b []byte) []byte {
					return appendMessage(b, fieldFields, func(b []byte) []byte {
						return appendText(appendText(appendText(b, "host", svc.Host), "name", svc.Name), "namespace", svc.Space)
					})
				})
			}
			return b
		})
	})
}

// appendText appends a field of a Struct with a text.
func appendText(b []byte, key, text string) []byte {
	return appendEntry(b, key, func(b []byte) []byte { return protowire.AppendString(wire.AppendField(b, fieldText), text) })
}

// appendEntry appends an entry of a map that is the first field of its message, as in Metadata and
// Struct. value appends a message.
func appendEntry(b []byte, key string, value func([]byte) []byte) []byte {
	return appendMessage(b, 1, func(b []byte) []byte {
		return appendMessage(protowire.AppendString(wire.AppendField(b, wire.FieldKey), key), wire.FieldValue, value)
	})
}

// appendMessage appends a field with the message that fill appends.
func appendMessage(b []byte, number protowire.Number, fill func([]byte) []byte) []byte {
	b = wire.AppendField(b, number)
	start := len(b)
	b = fill(b)
	var size [10]byte
	return slices.Insert(b, start, protowire.AppendVarint(size[:0], uint64(len(b)-start))...)
}
