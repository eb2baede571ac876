package facts

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

// ObjectKey names an object of a kind.
type ObjectKey struct {
	Cluster         mesh.ClusterID
	Namespace, Name string
}

// KeyOf returns the name of an object, without its kind.
func KeyOf(k snapshot.Key) ObjectKey { return ObjectKey{k.Cluster, k.Namespace, k.Name} }

// Compare orders names by cluster, namespace and name.
func (k ObjectKey) Compare(other ObjectKey) int {
	return cmp.Or(cmp.Compare(k.Cluster, other.Cluster), strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name))
}

// objects is the input table of one kind of object.
type objects[O snapshot.Object] struct {
	derive.Input[ObjectKey, O]
	kind snapshot.Kind
}

// inputTable is the input table of any kind.
type inputTable interface {
	// apply sets the object of an event, or removes it.
	apply(snapshot.Event)
	// Events yields all objects, as events that set them.
	Events(yield func(snapshot.Event) bool)
}

// input adds the input table of a kind. equal reports whether two objects mean the same;
// their places may differ.
func input[O snapshot.Object](t *Tables, kind snapshot.Kind, equal func(a, b O) bool) objects[O] {
	o := objects[O]{derive.NewInput(t.Graph, string(kind), ObjectKey.Compare, equal), kind}
	t.Inputs[kind] = o
	return o
}

// localInput adds the input table of a kind that counts only in the local cluster.
func localInput[O snapshot.Object](t *Tables, kind snapshot.Kind, equal func(a, b O) bool) objects[O] {
	o := input(t, kind, equal)
	t.Inputs[kind] = localTable{o, t.Cfg.Local}
	return o
}

func (o objects[O]) apply(e snapshot.Event) {
	if object, ok := e.Object.(O); ok {
		o.Set(KeyOf(e.Key), object)
		return
	}
	o.Delete(KeyOf(e.Key))
}

func (o objects[O]) Events(yield func(snapshot.Event) bool) {
	for k, object := range o.All() {
		if !yield(snapshot.Event{Key: snapshot.Key{Kind: o.kind, Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}, Object: object}) {
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
