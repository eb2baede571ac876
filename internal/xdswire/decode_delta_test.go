package xdswire_test

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// returning makes the first request of a reconnecting proxy.
func returning(names int) *discoveryv3.DeltaDiscoveryRequest {
	held := make(map[string]string, names)
	for i, n := range manyNames(names) {
		held[n] = strings.Repeat("0123456789abcdef", i%2+1)
	}
	held[strings.Repeat("long.", 100)] = ""
	held[""] = strings.Repeat("v", 300)
	return &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "n"}, TypeUrl: xdswire.ClusterType, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: held,
	}
}

func encoded(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestServerCodecVersionsHeld(t *testing.T) {
	c := xdswire.NewServerCodec(xdswire.NewNameSets(), xdswire.RequestLimits{Depth: 100})
	for _, names := range []int{0, 1, 1000} { // short and long requests
		want := returning(names)
		for range 2 { // the second time the codec knows the subscribed names
			got := new(discoveryv3.DeltaDiscoveryRequest)
			b := encoded(t, want)
			if err := receiveDelta(c, pieces(b), got); err != nil {
				t.Fatal(err)
			}
			clear(b) // the decoded message does not refer to the bytes
			if !proto.Equal(want, got) {
				t.Errorf("%d names: got another request", names)
			}
		}
	}
	b := encoded(t, returning(1000))
	for what, broken := range map[string][]byte{
		"cut":                    b[:len(b)-1],
		"a name is not UTF-8":    append(slices.Clone(b), 5<<3|2, 5, 1<<3|2, 1, 0xff, 2<<3|2, 0),
		"a version is not UTF-8": append(slices.Clone(b), 5<<3|2, 5, 1<<3|2, 0, 2<<3|2, 1, 0xff),
		"an entry that is cut":   append(slices.Clone(b), 5<<3|2, 3, 1<<3|2, 9, 'x'),
		"a field of no number":   append(slices.Clone(b), 0),
	} {
		if err := receiveDelta(c, pieces(broken), new(discoveryv3.DeltaDiscoveryRequest)); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

// receiveDelta decodes a request, and adds the names that are a set to it.
func receiveDelta(c xdswire.ServerCodec, data mem.BufferSlice, m *discoveryv3.DeltaDiscoveryRequest) error {
	names, err := receive(c, data, m)
	m.ResourceNamesSubscribe = append(m.ResourceNamesSubscribe, names.Names()...)
	return err
}

// FuzzVersionsHeld compares the codec with the ordinary one.
func FuzzVersionsHeld(f *testing.F) {
	b := encoded(f, returning(100))
	for _, tail := range [][]byte{
		nil,
		{5<<3 | 2, 0},
		{5<<3 | 2, 3, 1<<3 | 2, 1, 'a'},
		{5<<3 | 2, 3, 2<<3 | 2, 1, '1'},
		{5 << 3, 1},
		{3<<3 | 2, 1, 'a', 3<<3 | 2, 1, 'a'},
		{5<<3 | 2, 6, 2<<3 | 2, 1, '1', 1<<3 | 2, 1, 'a'},
		{5<<3 | 2, 8, 1<<3 | 2, 1, 'a', 2<<3 | 2, 1, '1', 3 << 3, 1},
		{5<<3 | 2, 6, 1<<3 | 2, 0x81, 0, 'a', 2<<3 | 2, 0},
	} {
		f.Add(tail)
	}
	c := xdswire.NewServerCodec(xdswire.NewNameSets(), xdswire.RequestLimits{Depth: 100})
	f.Fuzz(func(t *testing.T, tail []byte) {
		data := append(slices.Clone(b), tail...)
		want, got := new(discoveryv3.DeltaDiscoveryRequest), new(discoveryv3.DeltaDiscoveryRequest)
		errWant, errGot := ordinary(pieces(data), want), receiveDelta(c, pieces(data), got)
		if (errWant == nil) != (errGot == nil) {
			t.Fatalf("the ordinary codec says %v, this one %v", errWant, errGot)
		}
		want.ResourceNamesSubscribe = slices.Compact(slices.Sorted(slices.Values(want.GetResourceNamesSubscribe())))
		if errWant == nil && !proto.Equal(want, got) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// BenchmarkVersionsHeld decodes the first request of a proxy with 1,000 resources.
func BenchmarkVersionsHeld(b *testing.B) {
	data := mem.BufferSlice{mem.SliceBuffer(encoded(b, returning(1000)))}
	decode := func(b *testing.B, unmarshal func(mem.BufferSlice, *discoveryv3.DeltaDiscoveryRequest) error) {
		b.ReportAllocs()
		for b.Loop() {
			if err := unmarshal(data, new(discoveryv3.DeltaDiscoveryRequest)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("ordinary", func(b *testing.B) {
		decode(b, func(data mem.BufferSlice, m *discoveryv3.DeltaDiscoveryRequest) error { return ordinary(data, m) })
	})
	b.Run("server", func(b *testing.B) {
		c := xdswire.NewServerCodec(xdswire.NewNameSets(), xdswire.RequestLimits{Depth: 100})
		decode(b, func(data mem.BufferSlice, m *discoveryv3.DeltaDiscoveryRequest) error {
			return receiveDelta(c, data, m)
		})
	})
}

// ordinary decodes a message without ServerCodec.
func ordinary(data mem.BufferSlice, v any) error {
	return proto.UnmarshalOptions{RecursionLimit: 100}.Unmarshal(data.Materialize(), v.(proto.Message))
}
