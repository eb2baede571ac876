package xdswire

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func resource(t *testing.T, name, content string) *Resource {
	t.Helper()
	var e Encoder
	r, err := e.Resource(ClusterType, name, wrapperspb.String(content))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func anyOf(t *testing.T, content string) *anypb.Any {
	t.Helper()
	b, err := proto.Marshal(wrapperspb.String(content))
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: ClusterType, Value: b}
}

func TestSotWFrame(t *testing.T) {
	a, b, c := resource(t, "a", "one"), resource(t, "b", "two"), resource(t, "c", "")
	shared := NewBody(SotW, a, b)
	f := NewFrame(Header{Version: "v", TypeURL: ClusterType, Nonce: "n"}, shared, NewBody(SotW, c))
	want := &discoveryv3.DiscoveryResponse{
		VersionInfo: "v", TypeUrl: ClusterType, Nonce: "n",
		Resources: []*anypb.Any{anyOf(t, "one"), anyOf(t, "two"), anyOf(t, "")},
	}
	decodesTo(t, f, &discoveryv3.DiscoveryResponse{}, want, 3)
}

func TestDeltaFrame(t *testing.T) {
	a, b := resource(t, "a", "one"), resource(t, "b", "two")
	f := NewFrame(Header{Version: "v", TypeURL: ClusterType, Nonce: "n", Removed: []string{"x", "y"}}, NewBody(Delta, a), NewBody(Delta, b))
	want := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: "v", TypeUrl: ClusterType, Nonce: "n", RemovedResources: []string{"x", "y"},
		Resources: []*discoveryv3.Resource{
			{Name: "a", Version: a.Version, Resource: anyOf(t, "one")},
			{Name: "b", Version: b.Version, Resource: anyOf(t, "two")},
		},
	}
	decodesTo(t, f, &discoveryv3.DeltaDiscoveryResponse{}, want, 2)
}

func TestEmptyFrame(t *testing.T) {
	f := NewFrame(Header{TypeURL: ClusterType})
	decodesTo(t, f, &discoveryv3.DiscoveryResponse{}, &discoveryv3.DiscoveryResponse{TypeUrl: ClusterType}, 0)
}

func decodesTo(t *testing.T, f *Frame, got, want proto.Message, resources int) {
	t.Helper()
	buffers, err := ServerCodec{}.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	b := buffers.Materialize()
	if f.Size() != len(b) {
		t.Errorf("size %d, want %d", f.Size(), len(b))
	}
	if f.Resources() != resources {
		t.Errorf("%d resources, want %d", f.Resources(), resources)
	}
	if err := (ServerCodec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("frame decodes to (-want +got):\n%s", d)
	}
}

func TestFramesShareBytes(t *testing.T) {
	a := resource(t, "a", "one")
	body := NewBody(Delta, a)
	f := NewFrame(Header{Version: "v"}, body)
	first, second := f.Buffers(), f.Buffers()
	if &first[1].ReadOnlyData()[0] != &a.Delta()[0] {
		t.Error("the frame copies the resource")
	}
	first[0] = nil // each caller gets its own list
	if second[0] == nil || f.Buffers()[0] == nil {
		t.Error("two calls return one list")
	}
}

func TestCodecPassesMessages(t *testing.T) {
	m := wrapperspb.String("x")
	buffers, err := ServerCodec{}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	want, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buffers.Materialize(), want) {
		t.Error("an ordinary message is encoded otherwise")
	}
	if _, err := (ServerCodec{}).Marshal(42); err == nil {
		t.Error("what is no message is accepted")
	}
	if n := (ServerCodec{}).Name(); n != "proto" {
		t.Errorf("name %q", n)
	}
}

func TestNonces(t *testing.T) {
	var n Nonces
	seen := make(map[string]bool)
	for range 100 {
		s := n.Next()
		if s == "" || seen[s] || len(s) > 2 {
			t.Fatalf("nonce %q", s)
		}
		seen[s] = true
	}
}

// TestWhenWritten sends buffers as gRPC does: gRPC counts its references to a message
// and drops the last one when the connection has the last byte.
func TestWhenWritten(t *testing.T) {
	f := NewFrame(Header{TypeURL: ClusterType}, NewBody(Delta, resource(t, "a", "one")))
	calls := 0
	f.WhenWritten(func() { calls++ })
	buffers := f.Buffers()
	if got := buffers.Len(); got != f.Size() {
		t.Errorf("%d bytes, want %d", got, f.Size())
	}
	reader := buffers.Reader()
	buffers.Free()
	if _, err := reader.Discard(f.Size() - 1); err != nil || calls != 0 {
		t.Fatalf("%d calls before the last byte, error %v", calls, err)
	}
	if _, err := reader.Discard(1); err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil || calls != 1 {
		t.Errorf("%d calls, want 1; error %v", calls, err)
	}
}

// TestListsOfBuffersAreUsedAgain: Long messages in flight keep their content while the lists
// of earlier ones are used again.
func TestListsOfBuffersAreUsedAgain(t *testing.T) {
	var resources []*Resource
	for i := range longList {
		resources = append(resources, resource(t, fmt.Sprint(i), "text"))
	}
	message := func(nonce string, n int) *Frame {
		f := NewFrame(Header{TypeURL: ClusterType, Nonce: nonce}, NewBody(Delta, resources[:n]...))
		f.WhenWritten(func() {})
		return f
	}
	var flying []mem.BufferSlice
	var want [][]byte
	for i := range 20 {
		f := message(fmt.Sprint(i), longList-i%3)
		b := f.Buffers()
		flying, want = append(flying, b), append(want, b.Materialize())
		if len(flying) < 4 {
			continue
		}
		if got := flying[0].Materialize(); !bytes.Equal(got, want[0]) {
			t.Fatalf("message %d changed in flight", i-3)
		}
		flying[0].Free()
		flying, want = flying[1:], want[1:]
	}
}

// BenchmarkBuffers sends a message with 10,000 buffers.
func BenchmarkBuffers(b *testing.B) {
	body := NewBody(Delta, slices.Repeat([]*Resource{new(Encoder).Raw(ClusterType, "name", make([]byte, joinedSize))}, 10_000)...)
	f := NewFrame(Header{TypeURL: ClusterType}, body)
	f.WhenWritten(func() {})
	b.ReportAllocs()
	for b.Loop() {
		f.Buffers().Free()
	}
}
