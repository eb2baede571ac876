package registry

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// objectKey names an object of a kind.
type objectKey struct {
	cluster         mesh.ClusterID
	namespace, name string
}

func keyOf(k snapshot.Key) objectKey { return objectKey{k.Cluster, k.Namespace, k.Name} }

func (k objectKey) compare(other objectKey) int {
	return cmp.Or(cmp.Compare(k.cluster, other.cluster), strings.Compare(k.namespace, other.namespace), strings.Compare(k.name, other.name))
}

// objects is the input table of one kind of object.
type objects[O snapshot.Object] struct {
	derive.Input[objectKey, O]
	kind snapshot.Kind
}

// inputTable is the input table of any kind.
type inputTable interface {
	// apply sets the object of an event, or removes it.
	apply(snapshot.Event)
	// events yields all objects, as events that set them.
	events(yield func(snapshot.Event) bool)
}

// input adds the input table of a kind. equal reports whether two objects mean the same;
// their places may differ.
func input[O snapshot.Object](t *tables, kind snapshot.Kind, equal func(a, b O) bool) objects[O] {
	o := objects[O]{derive.NewInput(t.graph, string(kind), objectKey.compare, equal), kind}
	t.inputs[kind] = o
	return o
}

// localInput adds the input table of a kind that counts only in the local cluster.
func localInput[O snapshot.Object](t *tables, kind snapshot.Kind, equal func(a, b O) bool) objects[O] {
	o := input(t, kind, equal)
	t.inputs[kind] = localTable{o, t.cfg.Local}
	return o
}

func (o objects[O]) apply(e snapshot.Event) {
	if object, ok := e.Object.(O); ok {
		o.Set(keyOf(e.Key), object)
		return
	}
	o.Delete(keyOf(e.Key))
}

func (o objects[O]) events(yield func(snapshot.Event) bool) {
	for k, object := range o.All() {
		if !yield(snapshot.Event{Key: snapshot.Key{Kind: o.kind, Cluster: k.cluster, Namespace: k.namespace, Name: k.name}, Object: object}) {
			return
		}
	}
}

// localTable ignores the objects of other clusters.
type localTable struct {
	inputTable
	local mesh.ClusterID
}

func (t localTable) apply(e snapshot.Event) {
	if e.Key.Cluster == t.local {
		t.inputTable.apply(e)
	}
}

// equalObject compares all fields. Most events change none: a repeated list has mostly
// unchanged objects, and many changes concern fields that objects do not keep.
func equalObject[O snapshot.Object](a, b O) bool { return reflect.DeepEqual(a, b) }

func equalConfig[S proto.Message](a, b *snapshot.Config[S]) bool { return a.SameAs(b) }

func equalFilter(a, b *snapshot.EnvoyFilter) bool {
	x := *a
	x.Meta, x.Patches = b.Meta, b.Patches
	return equalMeta(&a.Meta, &b.Meta) && slices.EqualFunc(a.Patches, b.Patches, (*snapshot.Patch).SameAs) && reflect.DeepEqual(&x, b)
}

// equalServiceEntry compares all fields that have an effect.
func equalServiceEntry(a, b *snapshot.ServiceEntry) bool {
	x, y := *a, *b
	x.Place, y.Place = snapshot.Place{}, snapshot.Place{}
	return reflect.DeepEqual(&x, &y)
}

func equalSettings(a, b *snapshot.MeshSettings) bool {
	return proto.Equal(a.Mesh, b.Mesh) && proto.Equal(a.Networks, b.Networks)
}
