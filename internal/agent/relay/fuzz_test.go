package relay

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// FuzzFrames: every response that protobuf decodes passes with its envelope and resources, and
// only its nonce changes. Other bytes are an error, or are harmless. Requests survive decoding
// and encoding.
func FuzzFrames(f *testing.F) {
	for _, m := range []proto.Message{
		&dresp{TypeUrl: "t", Nonce: "n", SystemVersionInfo: "v", Resources: []*discoveryv3.Resource{resource("a", "1")}, RemovedResources: []string{"b"}},
		&sresp{TypeUrl: "t", Nonce: "n", VersionInfo: "v"},
		&dreq{Node: testNode(), TypeUrl: "t", ResourceNamesSubscribe: []string{"a"}, InitialResourceVersions: map[string]string{"a": "1"}},
		&sreq{Node: testNode(), TypeUrl: "t", ResourceNames: []string{"a"}, VersionInfo: "v"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, delta bool) {
		if !delta {
			fuzzFrame(t, xdswire.SotW, b, &sresp{}, &sreq{})
			return
		}
		fuzzFrame(t, xdswire.Delta, b, &dresp{}, &dreq{})
	})
}

func fuzzFrame(t *testing.T, v xdswire.Variant, b []byte, response interface {
	proto.Message
	GetTypeUrl() string
	GetNonce() string
}, request proto.Message,
) {
	t.Helper()
	e, err := decodeEnvelope(v, b)
	_, resourcesErr := decodeResources(v, b)
	if proto.Unmarshal(b, response) == nil && response.GetTypeUrl() != "" {
		if err != nil || resourcesErr != nil || e.typeURL != response.GetTypeUrl() || e.nonce != response.GetNonce() {
			t.Fatalf("%v, %v, envelope %+v of %v", err, resourcesErr, e, response)
		}
		if d, ok := response.(*dresp); ok && (len(e.held) != len(d.GetResources()) || len(e.removed) != len(d.GetRemovedResources())) {
			t.Fatalf("envelope %+v of %v", e, d)
		}
		m := withNonce(&message{mem.BufferSlice{mem.SliceBuffer(b)}}, "another")
		passed := response.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(m.data.Materialize(), passed); err != nil {
			t.Fatal(err)
		}
		nonce := response.ProtoReflect().Descriptor().Fields().ByNumber(fieldNonce)
		passed.ProtoReflect().Set(nonce, response.ProtoReflect().Get(nonce))
		if response.GetNonce() == "" {
			passed.ProtoReflect().Clear(nonce)
		}
		if !proto.Equal(passed, response) {
			t.Fatalf("%v was passed on as %v", response, passed)
		}
	}
	r, err := decodeRequest(v, b)
	if err != nil {
		return
	}
	m, err := r.encode(v)
	if err != nil {
		t.Fatal(err)
	}
	again := request.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(m.bytes(), again); err != nil {
		t.Fatal(err)
	}
	if again.(interface{ GetTypeUrl() string }).GetTypeUrl() != r.typeURL {
		t.Fatalf("request %v became %v", r, again)
	}
}
