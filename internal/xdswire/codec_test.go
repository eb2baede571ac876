package xdswire_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/meshctl/meshctl/internal/xdswire"
)

func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("outbound|80||svc-%d.default.svc.cluster.local", (i*7919)%n)
	}
	return names
}

// pieces splits a message as gRPC receives it.
func pieces(b []byte) mem.BufferSlice {
	var out mem.BufferSlice
	for chunk := range slices.Chunk(b, 1000) {
		out = append(out, mem.SliceBuffer(chunk))
	}
	return out
}

// receive decodes a message as streams do.
func receive(c xdswire.ServerCodec, data mem.BufferSlice, m proto.Message) (*xdswire.NameSet, error) {
	in := xdswire.Received{Message: m}
	if err := c.Unmarshal(data, &in); err != nil {
		return nil, err
	}
	return in.Names, in.Err
}

func decodeRequest(t testing.TB, c xdswire.ServerCodec, req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryRequest, *xdswire.NameSet) {
	t.Helper()
	b, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	got := new(discoveryv3.DiscoveryRequest)
	names, err := receive(c, pieces(b), got)
	if err != nil {
		t.Fatal(err)
	}
	return got, names
}

func TestServerCodecKnowsNamesAgain(t *testing.T) {
	sets := xdswire.NewNameSets()
	c := xdswire.NewServerCodec(sets, xdswire.RequestLimits{Depth: 100})
	names := manyNames(1000)
	set := sets.Of(names)
	for i, order := range [][]string{names, names, slices.Sorted(slices.Values(names)), append(slices.Clone(names), names[0])} {
		req := &discoveryv3.DiscoveryRequest{
			VersionInfo: fmt.Sprint("v", i), Node: &corev3.Node{Id: "n"}, ResourceNames: order,
			TypeUrl: xdswire.EndpointType, ResponseNonce: fmt.Sprint(i),
		}
		got, names := decodeRequest(t, c, req)
		if names != set {
			t.Errorf("list %d: the names are not those of the set", i)
		}
		req.ResourceNames = nil
		if d := cmp.Diff(req, got, protocmp.Transform()); d != "" {
			t.Errorf("list %d (-want +got):\n%s", i, d)
		}
	}
	one := slices.Clone(names)
	one[500] += "x"
	if _, got := decodeRequest(t, c, &discoveryv3.DiscoveryRequest{ResourceNames: one}); got != sets.Of(one) || got == set {
		t.Error("another list is taken for the one that is known")
	}
	// The boundary between two names matters.
	one = slices.Clone(names)
	one[1], one[2] = one[1]+one[2][:1], one[2][1:]
	if _, got := decodeRequest(t, c, &discoveryv3.DiscoveryRequest{ResourceNames: one}); got != sets.Of(one) || got == set {
		t.Error("a list with another border is taken for the one that is known")
	}
}

func TestServerCodecRefusesBrokenRequests(t *testing.T) {
	c := xdswire.NewServerCodec(xdswire.NewNameSets(), xdswire.RequestLimits{Depth: 100})
	b, err := proto.Marshal(&discoveryv3.DiscoveryRequest{ResourceNames: manyNames(1000)})
	if err != nil {
		t.Fatal(err)
	}
	for what, broken := range map[string][]byte{
		"cut":                  b[:len(b)-1],
		"not UTF-8":            append(slices.Clone(b), 3<<3|2, 1, 0xff),
		"a field of no number": append(slices.Clone(b), 0),
	} {
		for range 2 { // a malformed list does not become a known one
			if _, err := receive(c, pieces(broken), new(discoveryv3.DiscoveryRequest)); err == nil {
				t.Errorf("%s: accepted", what)
			}
		}
	}
}

// FuzzServerCodec compares the codec with the ordinary one.
func FuzzServerCodec(f *testing.F) {
	b, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNames: manyNames(100)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(append(slices.Clone(b), 3<<3|2, 1, 0xff))
	f.Add(append(slices.Clone(b), b...))
	c := xdswire.NewServerCodec(xdswire.NewNameSets(), xdswire.RequestLimits{Depth: 100})
	f.Fuzz(func(t *testing.T, tail []byte) {
		data := append(slices.Clone(b), tail...)
		want, got := new(discoveryv3.DiscoveryRequest), new(discoveryv3.DiscoveryRequest)
		errWant := ordinary(pieces(data), want)
		set, errGot := receive(c, pieces(data), got)
		if (errWant == nil) != (errGot == nil) {
			t.Fatalf("the ordinary codec says %v, this one %v", errWant, errGot)
		}
		if errWant != nil {
			return
		}
		names := slices.Compact(slices.Sorted(slices.Values(want.GetResourceNames())))
		if !slices.Equal(names, set.Names()) {
			t.Fatalf("names differ: %q, want %q", set.Names(), names)
		}
		want.ResourceNames = nil
		if !proto.Equal(want, got) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// BenchmarkServerCodec decodes a state-of-the-world ACK of 1,000 assignments.
func BenchmarkServerCodec(b *testing.B) {
	req, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNames: manyNames(1000)})
	if err != nil {
		b.Fatal(err)
	}
	sets := xdswire.NewNameSets()
	set := sets.Of(manyNames(1000))
	data := mem.BufferSlice{mem.SliceBuffer(req)}
	b.Run("ordinary", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			got := new(discoveryv3.DiscoveryRequest)
			if err := ordinary(data, got); err != nil {
				b.Fatal(err)
			}
			if sets.Of(got.GetResourceNames()) != set {
				b.Fatal("another set")
			}
		}
	})
	b.Run("known", func(b *testing.B) {
		c := xdswire.NewServerCodec(sets, xdswire.RequestLimits{Depth: 100})
		b.ReportAllocs()
		for b.Loop() {
			names, err := receive(c, data, new(discoveryv3.DiscoveryRequest))
			if err != nil {
				b.Fatal(err)
			}
			if names != set {
				b.Fatal("another set")
			}
		}
	})
}

// BenchmarkDistinctNames decodes requests for 5,000 names, each with one name that no other
// has, as of namespaces with a private Service. kept-B is the memory of one set.
func BenchmarkDistinctNames(b *testing.B) {
	sets := xdswire.NewNameSets()
	c := xdswire.NewServerCodec(sets, xdswire.RequestLimits{Depth: 100})
	names := append(manyNames(5000), "")
	var kept []*xdswire.NameSet
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapInuse)
	}
	n, before := 0, 0.0
	b.ReportAllocs()
	for b.Loop() {
		names[5000] = fmt.Sprintf("outbound|80||private.ns-%d.svc.cluster.local", n)
		data, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names})
		if err != nil {
			b.Fatal(err)
		}
		set, err := receive(c, pieces(data), new(discoveryv3.DeltaDiscoveryRequest))
		if err != nil {
			b.Fatal(err)
		}
		kept = append(kept, set)
		if n++; n == 1 {
			b.StopTimer()
			before = heap()
			b.StartTimer()
		}
	}
	b.ReportMetric((heap()-before)/float64(max(n-1, 1)), "kept-B/op")
	runtime.KeepAlive(kept)
}
