package render

import (
	"cmp"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// requests are the names of resources that an Envoy requests because clusters and
// listeners refer to them, by type URL.
type requests map[string]map[string]struct{}

func (r requests) add(url, name string) {
	if r[url] == nil {
		r[url] = make(map[string]struct{})
	}
	r[url][name] = struct{}{}
}

func (r requests) resources(list []*xdswire.Resource) {
	for _, res := range list {
		if a, err := res.Any(); err == nil {
			r.message(a.ProtoReflect())
		}
	}
}

// message adds the names in a message and in the messages that it contains. Messages of
// types that the program does not link have none.
func (r requests) message(m protoreflect.Message) {
	switch m := m.Interface().(type) {
	case *anypb.Any:
		if inner, err := m.UnmarshalNew(); err == nil {
			r.message(inner.ProtoReflect())
		}
		return
	case *clusterv3.Cluster:
		if m.GetType() == clusterv3.Cluster_EDS {
			r.add(xdswire.EndpointType, cmp.Or(m.GetEdsClusterConfig().GetServiceName(), m.GetName()))
		}
	case *hcmv3.Rds:
		r.add(xdswire.RouteType, m.GetRouteConfigName())
	case *tlsv3.SdsSecretConfig:
		if m.GetSdsConfig().GetAds() != nil {
			r.add(xdswire.SecretType, m.GetName())
		}
	case *hcmv3.HttpFilter:
		if m.GetConfigDiscovery() != nil {
			r.add(xdswire.ExtensionType, m.GetName())
		}
	case *listenerv3.Filter:
		if m.GetConfigDiscovery() != nil {
			r.add(xdswire.ExtensionType, m.GetName())
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil, f.IsMap() && f.MapValue().Message() == nil:
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { r.message(v.Message()); return true })
		case f.IsList():
			for i := range v.List().Len() {
				r.message(v.List().Get(i).Message())
			}
		default:
			r.message(v.Message())
		}
		return true
	})
}
