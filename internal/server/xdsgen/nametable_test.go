package xdsgen_test

import (
	"net/netip"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// types resolves the linked messages and Istio's NameTable, which no module has.
type types struct {
	*protoregistry.Types
	nameTable protoreflect.MessageType
}

func (r types) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if url == "type.googleapis.com/istio.networking.nds.v1.NameTable" {
		return r.nameTable, nil
	}
	return r.Types.FindMessageByURL(url)
}

// resolver returns the types of all resources. It describes NameTable, which has this
// form in Istio:
//
//	message NameTable {
//	  message NameInfo {
//	    repeated string ips = 1;
//	    string registry = 2;
//	    string shortname = 3;
//	    string namespace = 4;
//	  }
//	  map<string, NameInfo> table = 1;
//	}
func resolver(t testing.TB) types {
	t.Helper()
	field := func(name string, number int32, label descriptorpb.FieldDescriptorProto_Label, message string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{
			Name: new(name), JsonName: new(name), Number: new(number), Label: label.Enum(),
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
		}
		if message != "" {
			f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), new(".istio.networking.nds.v1.NameTable."+message)
		}
		return f
	}
	one, many := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("nds.proto"), Package: new("istio.networking.nds.v1"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name:  new("NameTable"),
			Field: []*descriptorpb.FieldDescriptorProto{field("table", 1, many, "TableEntry")},
			NestedType: []*descriptorpb.DescriptorProto{
				{Name: new("NameInfo"), Field: []*descriptorpb.FieldDescriptorProto{
					field("ips", 1, many, ""), field("registry", 2, one, ""), field("shortname", 3, one, ""), field("namespace", 4, one, ""),
				}},
				{
					Name:    new("TableEntry"),
					Field:   []*descriptorpb.FieldDescriptorProto{field("key", 1, one, ""), field("value", 2, one, "NameInfo")},
					Options: &descriptorpb.MessageOptions{MapEntry: new(true)},
				},
			},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return types{protoregistry.GlobalTypes, dynamicpb.NewMessageType(file.Messages().Get(0))}
}

// TestNameTable generates the DNS tables of several proxies of testdata/names.
func TestNameTable(t *testing.T) {
	read := func(networks map[mesh.ClusterID]string) *snapshot.Snapshot {
		var events []snapshot.Event
		for _, c := range []mesh.ClusterID{"cluster1", "cluster2"} {
			events = append(events, readObjects(t, c, filepath.Join("testdata", "names", string(c)+".yaml"))...)
			ns := &snapshot.Namespace{Meta: metaOf(c, "", mesh.DefaultSystemNamespace)}
			ns.Labels[mesh.LabelNetwork] = networks[c]
			events = append(events, put(ns))
		}
		return build(t, []mesh.ClusterID{"cluster1", "cluster2"}, events)
	}
	one := read(nil)
	two := read(map[mesh.ClusterID]string{"cluster1": "network1", "cluster2": "network2"})
	for name, tc := range map[string]struct {
		s    *snapshot.Snapshot
		node proxy.Node
	}{
		"own-namespace":   {one, nodeAt(mesh.Sidecar, "cluster1", "apps", "10.1.0.9", "fd00::9")},
		"other-namespace": {one, nodeAt(mesh.Sidecar, "cluster1", "data", "10.1.0.9")},
		"other-cluster":   {one, nodeAt(mesh.Sidecar, "cluster2", "data", "10.1.0.9")},
		"other-network":   {two, nodeAt(mesh.Sidecar, "cluster2", "data", "10.1.0.9")},
		"gateway":         {two, nodeAt(mesh.Router, "cluster1", "istio-system", "10.1.0.9")},
	} {
		t.Run(name, func(t *testing.T) {
			resources := generate(t, tc.s, tc.node)[xdswire.NameTableType]
			if len(resources) != 1 || resources[0].Name != "" {
				t.Fatalf("got %v, want one resource without a name", resources)
			}
			compareGolden(t, filepath.Join("testdata", "names", name+".golden.yaml"), render(t, resources))
		})
	}
}

func nodeAt(typ mesh.NodeType, c mesh.ClusterID, namespace string, ips ...string) proxy.Node {
	n := proxy.Node{ID: mesh.NodeID{Type: typ, Name: "p", Namespace: namespace}, Cluster: c, Namespace: namespace, Captured: true}
	for _, ip := range ips {
		n.IPs = append(n.IPs, netip.MustParseAddr(ip))
	}
	return n
}
