package xdswire

import (
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// fieldHeldVersions is a field of DeltaDiscoveryRequest. Field 4 holds unsubscribed names.
const fieldHeldVersions = 5

// delta decodes the held versions without protobuf's reflection, which would take ten
// times as long.
func (c ServerCodec) delta(b []byte, req *discoveryv3.DeltaDiscoveryRequest) (*NameSet, error) {
	rest, versions := heldVersions(b)
	if versions == nil {
		rest = b
	}
	set, err := c.unmarshalNames(rest, req, req.GetResourceNamesSubscribe)
	req.ResourceNamesSubscribe = nil
	if versions != nil {
		req.InitialResourceVersions = versions
	}
	return set, err
}

// heldVersions cuts the held versions out of an encoded DeltaDiscoveryRequest; rest is a
// copy of its other fields. They are nil if there are none, if the request is malformed,
// or if no encoder writes such an encoding.
func heldVersions(b []byte) (rest []byte, versions map[string]string) {
	entries, size := 0, 0
	bad := eachField(b, func(num protowire.Number, typ protowire.Type, from, to int) bool {
		if num == fieldHeldVersions {
			entries, size = entries+1, size+to-from
		}
		return num != fieldHeldVersions || typ == protowire.BytesType
	})
	if bad || entries == 0 {
		return nil, nil // nothing was copied
	}
	text := string(b) // names and versions share these bytes
	rest = make([]byte, 0, len(b)-size)
	versions = make(map[string]string, entries)
	bad = eachField(b, func(num protowire.Number, _ protowire.Type, from, to int) bool {
		if num != fieldHeldVersions {
			rest = append(rest, b[from:to]...)
			return true
		}
		_, tag := protowire.ConsumeVarint(b[from:])
		_, length := protowire.ConsumeVarint(b[from+tag:])
		name, after, ok := cutString(text[from+tag+length:to], 1)
		version, end, also := cutString(after, 2)
		versions[name] = version
		return ok && also && end == ""
	})
	if bad {
		return nil, nil
	}
	return rest, versions
}

// eachField calls good for the fields of a message, each from its tag to its end. It
// reports whether a field is malformed or not good.
func eachField(b []byte, good func(num protowire.Number, typ protowire.Type, from, to int) bool) bool {
	for at := 0; at < len(b); {
		num, typ, n := protowire.ConsumeField(b[at:])
		if n < 0 || !good(num, typ, at, at+n) {
			return true
		}
		at += n
	}
	return false
}

// cutString cuts a string field off the start of a message.
func cutString(m string, num protowire.Number) (value, after string, ok bool) {
	if len(m) < 2 || m[0] != byte(num)<<3|byte(protowire.BytesType) {
		return "", "", false
	}
	size, n := int(m[1]), 1
	if m[1] >= 0x80 {
		long, more := protowire.ConsumeVarint([]byte(m[1:min(len(m), 11)]))
		if more < 0 || long > uint64(len(m)) {
			return "", "", false
		}
		size, n = int(long), more
	}
	if m = m[1+n:]; size > len(m) || !utf8.ValidString(m[:size]) {
		return "", "", false
	}
	return m[:size], m[size:], true
}
