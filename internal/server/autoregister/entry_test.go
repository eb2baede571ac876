package autoregister

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/workload"
)

// TestEntryOfTemplate: the WorkloadEntry of a machine differs with each field of the template of its
// group, except for the address.
func TestEntryOfTemplate(t *testing.T) {
	t.Parallel()
	machine := node()
	machine.Labels, machine.Network, machine.Locality = nil, "", mesh.Locality{} // those of the machine come first
	entry := func(text string) string {
		template := &networkingv1alpha3.WorkloadEntry{}
		if err := protojson.Unmarshal([]byte(text), template); err != nil {
			t.Fatal(err)
		}
		o, err := entryOf(&workload.Group{Name: "g", Namespace: "ns", Spec: &networkingv1alpha3.WorkloadGroup{Template: template}},
			joined{node: machine, entry: snapshot.PodKey{Namespace: "ns", Name: "e"}})
		if err != nil {
			t.Fatal(err)
		}
		made, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return string(made)
	}
	values := map[string]string{
		"address": `"192.0.2.9"`, "ports": `{"http": 8080}`, "labels": `{"version": "v1"}`, "network": `"other"`, "locality": `"region1/zone1"`,
		"weight": "3", "serviceAccount": `"other"`,
	}
	fields := (&networkingv1alpha3.WorkloadEntry{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := fields.Get(i).JSONName()
		if values[name] == "" {
			t.Errorf("field %s has no value here", name)
			continue
		}
		if differs := entry("{}") != entry(`{"`+name+`": `+values[name]+"}"); differs != (name != "address") {
			t.Errorf("the entry differs with %s of the template: %t", name, differs)
		}
	}
}
