package main

import (
	"bytes"
	"hash/maphash"
	"io"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// response is a decoded response.
type response struct {
	typ, nonce, version string
	*batch
}

// batch holds the resources of a response. Proxies that receive equal bytes share one.
type batch struct {
	once sync.Once
	seed maphash.Seed
	// names holds the hashes of the names, sorted: in a large mesh there are millions of names.
	names []uint64
	// ask holds the encoded names of dependent resources, field 3 in both variants.
	ask []byte
	// held holds the resources with their versions as field 5 of a delta request, for a
	// proxy that reconnects. It is empty if the fleet never does.
	held []byte
	// extensions holds the encoded names of the extensions to which listeners refer, like ask.
	extensions []byte
}

// policyExtensions are the extensions that a proxy subscribes to if its listeners name them.
var policyExtensions = []string{
	"envoy.filters.http.rbac.allow", "envoy.filters.http.rbac.deny", "envoy.filters.network.rbac.allow", "envoy.filters.network.rbac.deny",
}

// batches finds the batch of resources by their bytes.
type batches struct {
	sotw bool
	// stays is set if proxies do not reconnect.
	stays bool
	seed  maphash.Seed
	mu    sync.Mutex
	all   map[uint64]*batch
}

func newBatches(sotw bool) *batches {
	return &batches{sotw: sotw, seed: maphash.MakeSeed(), all: make(map[uint64]*batch)}
}

// parse reads a DiscoveryResponse or DeltaDiscoveryResponse, whose fields 2, 4
// and 5 have the same meaning.
func (s *batches) parse(frame []byte) (response, error) {
	var r response
	var hash maphash.Hash
	hash.SetSeed(s.seed)
	err := xdswire.Fields(frame, func(num protowire.Number, v []byte) error {
		switch num {
		case 1:
			r.version = string(v)
		case 2:
			_, _ = hash.Write(v)
		case 4:
			r.typ = string(v)
		case 5:
			r.nonce = string(v)
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	if r.typ == "" {
		return r, io.ErrUnexpectedEOF
	}
	_, _ = hash.WriteString(r.typ)
	s.mu.Lock()
	if r.batch = s.all[hash.Sum64()]; r.batch == nil {
		r.batch = &batch{seed: s.seed}
		s.all[hash.Sum64()] = r.batch
	}
	s.mu.Unlock()
	r.once.Do(func() { r.fill(r.typ, frame, s.sotw, !s.sotw && !s.stays) })
	return r, nil
}

// fill reads the resources of a response.
func (b *batch) fill(typ string, frame []byte, sotw, held bool) {
	_ = xdswire.Fields(frame, func(num protowire.Number, v []byte) error { // was read before
		if num != 2 {
			return nil
		}
		var name string
		if sotw {
			// The name is field 1 of clusters, listeners, assignments and routes.
			name = field([]byte(field(v, 2)), 1)
		} else {
			name = field(v, 3)
		}
		if held {
			entry := appendField(appendField(nil, 1, name), 2, field(v, 1))
			b.held = appendField(b.held, 5, string(entry))
		}
		b.names = append(b.names, maphash.String(b.seed, name))
		switch typ {
		case xdswire.ClusterType:
			if strings.HasPrefix(name, "outbound|") {
				b.ask = appendField(b.ask, 3, name)
			}
		case xdswire.ListenerType:
			if port, ok := strings.CutPrefix(name, "0.0.0.0_"); ok {
				b.ask = appendField(b.ask, 3, port)
			}
		}
		return nil
	})
	if typ == xdswire.ListenerType {
		for _, name := range policyExtensions {
			if bytes.Contains(frame, []byte(name)) {
				b.extensions = appendField(b.extensions, 3, name)
			}
		}
	}
	slices.Sort(b.names)
}

// has reports whether the batch has a resource of the name.
func (b *batch) has(name string) bool {
	_, ok := slices.BinarySearch(b.names, maphash.String(b.seed, name))
	return ok
}

// request is a subscription or an acknowledgement.
type request struct {
	typ, nonce, version string
	node                []byte // encoded
	rest                []byte // encoded fields: names, versions held
}

// encode returns the message in parts. The last one is r.rest.
func (r request) encode(sotw bool) [][]byte {
	b := make([]byte, 0, 32+len(r.typ)+len(r.nonce)+len(r.version)+len(r.node))
	if sotw {
		b = appendField(b, 1, r.version)
		b = appendField(b, 2, string(r.node))
		b = appendField(b, 4, r.typ)
		b = appendField(b, 5, r.nonce)
	} else {
		b = appendField(b, 1, string(r.node))
		b = appendField(b, 2, r.typ)
		b = appendField(b, 6, r.nonce)
	}
	return [][]byte{b, r.rest}
}

// appendField appends a field unless it is empty, as encoders do.
func appendField(b []byte, num protowire.Number, value string) []byte {
	if value == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), value)
}

// field returns the last field with the number.
func field(b []byte, want protowire.Number) string {
	var found []byte
	_ = xdswire.Fields(b, func(num protowire.Number, v []byte) error {
		if num == want {
			found = v
		}
		return nil
	})
	return string(found)
}
