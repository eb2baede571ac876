package proxyconfig

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// unordered returns the lists whose order has no meaning for Envoy, each with the fields
// that identify its messages.
func unordered() map[protoreflect.FullName][]protoreflect.Name {
	return map[protoreflect.FullName][]protoreflect.Name{
		"envoy.config.listener.v3.Listener.filter_chains":                 {"name", "filter_chain_match"},
		"envoy.config.listener.v3.FilterChainMatch.prefix_ranges":         {"address_prefix", "prefix_len"},
		"envoy.config.listener.v3.FilterChainMatch.server_names":          nil,
		"envoy.config.listener.v3.FilterChainMatch.application_protocols": nil,
		"envoy.config.route.v3.RouteConfiguration.virtual_hosts":          {"name"},
		"envoy.config.route.v3.VirtualHost.domains":                       nil,
		"envoy.config.endpoint.v3.ClusterLoadAssignment.endpoints":        {"priority", "locality"},
		"envoy.config.endpoint.v3.LocalityLbEndpoints.lb_endpoints":       {"endpoint", "endpoint_name"},
	}
}

// arrange sorts the lists of unordered in a message and its extensions.
func arrange(m proto.Message, lists map[protoreflect.FullName][]protoreflect.Name) {
	// Range fails on an incomplete message of an extension, which no callback requires to
	// be complete.
	_ = protorange.Options{}.Range(m.ProtoReflect(), nil, func(p protopath.Values) error {
		last := p.Index(-1)
		if last.Step.Kind() != protopath.FieldAccessStep {
			return nil
		}
		if fields, ok := lists[last.Step.FieldDescriptor().FullName()]; ok {
			sortList(last.Value.List(), fields)
		}
		return nil
	})
}

// sortList sorts texts, or messages by these fields.
func sortList(list protoreflect.List, fields []protoreflect.Name) {
	type item struct {
		key   string
		value protoreflect.Value
	}
	items := make([]item, list.Len())
	for i := range items {
		items[i].value = list.Get(i)
		if len(fields) == 0 {
			items[i].key = items[i].value.String()
		} else {
			items[i].key = keyOf(items[i].value.Message(), fields)
		}
	}
	slices.SortStableFunc(items, func(a, b item) int { return strings.Compare(a.key, b.key) })
	for i, it := range items {
		list.Set(i, it.value)
	}
}

// keyOf returns the same text for the same values of the fields.
func keyOf(m protoreflect.Message, fields []protoreflect.Name) string {
	key := m.New()
	for _, name := range fields {
		if fd := m.Descriptor().Fields().ByName(name); m.Has(fd) {
			key.Set(fd, m.Get(fd))
		}
	}
	data, _ := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(key.Interface()) // to memory
	return string(data)
}

// ownAddress is an address of an Envoy itself, and the alias that replaces it.
type ownAddress struct{ text, alias string }

// addOwn adds an address. Its alias has its family and, from the second address of a
// family on, a number: own-ipv4, own-ipv4-2, own-ipv6.
func addOwn(all []ownAddress, ip netip.Addr) []ownAddress {
	own := ownAddress{ip.String(), "own-ipv6"}
	if ip.Is4() {
		own.alias = "own-ipv4"
	}
	family := 1
	for _, other := range all {
		if other.text == own.text {
			return all
		}
		if strings.HasPrefix(other.alias, own.alias) {
			family++
		}
	}
	if family > 1 {
		own.alias += fmt.Sprintf("-%d", family)
	}
	return append(all, own)
}

// alike replaces addresses by their aliases.
func alike(raw []byte, addresses []ownAddress) []byte {
	for _, own := range addresses {
		address := own.text
		parts := "0123456789."
		if strings.Contains(address, ":") {
			parts = "0123456789abcdef:"
		}
		var out []byte
		from := 0 // what is not in out yet
		for at := 0; ; {
			i := bytes.Index(raw[at:], []byte(address))
			if i < 0 {
				break
			}
			begin, end := at+i, at+i+len(address)
			at = end
			// Otherwise it is a part of another address.
			if (begin == 0 || strings.IndexByte(parts, raw[begin-1]) < 0) && (end == len(raw) || strings.IndexByte(parts, raw[end]) < 0) {
				out = append(append(out, raw[from:begin]...), own.alias...)
				from = end
			}
		}
		raw = append(out, raw[from:]...)
	}
	return raw
}
