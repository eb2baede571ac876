package source

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// at returns the path of an item of a list.
func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// each checks every item of a list. Empty items are faults.
func each[T any](list string, items []*T, check func(field string, item *T) *FieldError) *FieldError {
	var faults *FieldError
	for i, item := range items {
		if item == nil {
			faults = faults.and(faultf(at(list, i), "is empty"))
			continue
		}
		faults = faults.and(check(at(list, i), item))
	}
	return faults
}

// hostFault checks a DNS name that may be "*" or start with "*.".
func hostFault(field, host string) *FieldError {
	name := strings.ToLower(strings.TrimPrefix(host, "*."))
	if host == "*" || mesh.IsDNSName(name) {
		return nil
	}
	return faultf(field, "%q is not a host name", host)
}

// scopedHostFault checks <namespace>/<host>. The namespace may also be one of the
// words.
func scopedHostFault(field, host, words string) *FieldError {
	namespace, name, _ := strings.Cut(host, "/")
	if !mesh.IsDNSLabel(namespace) && !slices.Contains(strings.Fields(words), namespace) {
		return faultf(field, "%q: %q is neither a namespace nor one of %s", host, namespace, words)
	}
	return hostFault(field, name)
}

func portFault(field string, number uint32, protocol string, refused ...mesh.Protocol) *FieldError {
	faults := protocolFault(field, protocol, refused...)
	if !isPort(number) {
		return faultf(field+".number", "%d is not a port: want 1 to 65535", number).and(faults)
	}
	return faults
}

// protocolFault checks the protocol of a port. None means detection.
func protocolFault(field, protocol string, refused ...mesh.Protocol) *FieldError {
	p, known := mesh.ParseProtocol(protocol)
	if protocol != "" && !known || slices.Contains(refused, p) {
		return faultf(field+".protocol", "%q is not a protocol that this port can have", protocol)
	}
	return nil
}

func bindFault(field, bind string) *FieldError {
	if bind == "" {
		return nil
	}
	if _, err := parseAddr(bind); err != nil {
		return &FieldError{Field: field, Err: err}
	}
	return nil
}

func labelsFault(field string, labels map[string]string) *FieldError {
	if len(labels) == 0 {
		return nil
	}
	var faults *FieldError
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if key == "" || strings.Contains(key, "*") || strings.Contains(labels[key], "*") {
			faults = faults.and(faultf(field+"["+key+"]", "wildcards and empty names are not allowed"))
		}
	}
	return faults
}

// parseAddr parses an IP address. The result is comparable: IPv4 is never mapped to
// IPv6. Zones are refused.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

const unspecifiedAddress = "is the unspecified address"

// refused returns the reason why an address is not used, "" if it is used.
func (c *Converter) refused(a netip.Addr) string {
	if !c.RefuseLocal {
		return ""
	}
	switch mesh.AddressKindOf(a) {
	case mesh.AddressLoopback:
		return "is a loopback address"
	case mesh.AddressLinkLocal, mesh.AddressMetadata:
		return "is a link-local or metadata address"
	case mesh.AddressUnspecified:
		return unspecifiedAddress
	case mesh.AddressMulticast:
		return "is a multicast address"
	}
	return ""
}

// refusedGateway returns the reason why the address or host name of a gateway is not used, ""
// if it is used. To a proxy, the unspecified address is its own host.
func (c *Converter) refusedGateway(host string) string {
	if a, err := parseAddr(host); err == nil && mesh.AddressKindOf(a) == mesh.AddressUnspecified {
		return unspecifiedAddress
	}
	return c.refusedHost(host)
}

// refusedHost returns the reason why an address or host name is not used, "" if it
// is used.
func (c *Converter) refusedHost(host string) string {
	if a, err := parseAddr(host); err == nil {
		return c.refused(a)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if c.RefuseLocal && (name == "localhost" || strings.HasSuffix(name, ".localhost")) {
		return "is a loopback name"
	}
	return ""
}

// addresses parses IP addresses. Refused addresses are left out with a warning.
func (c *conversion) addresses(field string, texts []string) ([]netip.Addr, *FieldError) {
	out := make([]netip.Addr, 0, len(texts))
	for i, text := range texts {
		at := itemOf(field, i)
		a, err := parseAddr(text)
		if err != nil {
			return nil, &FieldError{Field: at, Err: err}
		}
		if why := c.refused(a); why != "" {
			c.warn(faultf(at, "%s %s: it is not used", a, why))
			continue
		}
		out = append(out, a)
	}
	return out, nil
}

func isPort[T int32 | uint32](n T) bool { return n > 0 && n <= 65535 }

// checkProxyPort reports a port of a workload at which proxies listen by default, and which no
// application has.
func (c *conversion) checkProxyPort(field string, port uint32) {
	switch port {
	case mesh.PortEnvoyAdmin, mesh.PortOutbound, mesh.PortInbound:
		c.warn(faultf(field, "%d is a port of the proxy: sidecars do not route connections to it", port))
	}
}

// localName returns the reason why a host name or address cannot be the address of a
// service, or "".
func localName(host string) string {
	name := strings.ToLower(host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return "is a loopback name"
	}
	if a, err := parseAddr(host); err == nil {
		if kind := mesh.AddressKindOf(a); kind != mesh.AddressOrdinary {
			return "is an address of the kind " + string(kind)
		}
	}
	return ""
}

// itemOf returns the path of an item of a list, or the field itself if it holds a
// single address.
func itemOf(field string, i int) string {
	if strings.HasSuffix(field, "IP") {
		return field
	}
	return at(field, i)
}
