package source

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
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
	if name := mesh.CanonicalHost(host); name == "*" || mesh.IsDNSName(strings.TrimPrefix(name, "*.")) {
		return nil
	}
	return faultf(field, "%q is not a host name", host)
}

// patternFault checks a DNS name that may start with "*", which stands for the start of a label, too.
func patternFault(field, host string) *FieldError {
	if suffix, ok := strings.CutPrefix(mesh.CanonicalHost(host), "*"); ok && mesh.IsDNSName(strings.TrimPrefix(suffix, "-")) {
		return nil
	}
	return hostFault(field, host)
}

// scopedHostFault checks <namespace>/<host> as patternFault does. The namespace may also be one of
// the words.
func scopedHostFault(field, host, words string) *FieldError {
	namespace, name, _ := strings.Cut(host, "/")
	if !mesh.IsDNSLabel(namespace) && !slices.Contains(strings.Fields(words), namespace) {
		return faultf(field, "%q: %q is neither a namespace nor one of %s", host, namespace, words)
	}
	return patternFault(field, name)
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

// refused returns the reason why an address is not used, "" if it is used.
func (c *Converter) refused(a netip.Addr) string { return c.refusedHost(a.String()) }

// refusedGateway returns the reason why the address or host name of a gateway is not used, ""
// if it is used. To a proxy, the unspecified address is its own host.
func (c *Converter) refusedGateway(host string) string {
	if mesh.HostKindOf(host) == mesh.AddressUnspecified {
		return localHost(host)
	}
	return c.refusedHost(host)
}

// refusedHost returns the reason why an address or host name is not used, "" if it
// is used.
func (c *Converter) refusedHost(host string) string {
	if !c.RefuseLocal {
		return ""
	}
	return localHost(host)
}

// localHost returns the reason why an address or host name leads a proxy to its own machine or
// network, or "". A name that DNS resolves to such an address cannot be known here.
func localHost(host string) string {
	what := "name"
	if _, err := parseAddr(host); err == nil {
		what = "address"
	}
	switch mesh.HostKindOf(host) {
	case mesh.AddressLoopback:
		return "is a loopback " + what
	case mesh.AddressLinkLocal, mesh.AddressMetadata:
		return "is a link-local or metadata " + what
	case mesh.AddressUnspecified:
		if what == "address" {
			return "is the unspecified address"
		}
		return "is a name of the unspecified address"
	case mesh.AddressMulticast:
		return "is a multicast " + what
	}
	return ""
}

// maxPath is the length of the longest path of a Unix socket. Envoy refuses all endpoints
// because of a longer one.
const maxPath = 107

// refusedSocket returns the reason why a proxy must not use a Unix socket ("unix://PATH"), or "".
// A proxy deletes what is at the path before it listens there, and the agent serves the workload's
// key at such a socket. An abstract socket (@NAME) is in no folder.
func (c *Converter) refusedSocket(address string) string {
	name := strings.TrimPrefix(address, snapshot.UnixScheme)
	below := c.SocketDir != "" && strings.HasPrefix(name, strings.TrimSuffix(c.SocketDir, "/")+"/") && path.Clean(name) == name
	switch {
	case below && len(name) <= maxPath && !strings.ContainsFunc(name, unicode.IsControl):
		return ""
	case c.RefuseLocal:
		return "is a Unix socket of the proxy's machine, which objects of a Kubernetes API cannot use"
	case c.SocketDir == "":
		return "is a Unix socket of the proxy's machine: allow the folder of such sockets with --socket-dir"
	case len(name) > maxPath:
		return fmt.Sprintf("is a path of more than %d bytes", maxPath)
	}
	return "is not a Unix socket below " + c.SocketDir + " (--socket-dir)"
}

// socketFault checks an address that may be a Unix socket.
func (c *Converter) socketFault(field, address string) *FieldError {
	if snapshot.IsUnixSocket(address) {
		if why := c.refusedSocket(address); why != "" {
			return faultf(field, "%q %s", address, why)
		}
	}
	return nil
}

// CheckSocketDir returns an error if a folder cannot be SocketDir of a Converter.
func CheckSocketDir(dir string) error {
	switch {
	case dir == "":
		return nil
	case !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/":
		return fmt.Errorf("%q is not the absolute path of a folder, or contains . or .. as a part", dir)
	case isBelow(dir, agentDir) || isBelow(agentDir, dir):
		return fmt.Errorf("%s has the sockets of the agent, in %s: name a folder of its own", dir, agentDir)
	}
	return nil
}

// agentDir is the folder in which agents have their sockets by default.
const agentDir = "/etc/istio/proxy"

func isBelow(name, dir string) bool { return strings.HasPrefix(name+"/", dir+"/") }

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
// application has. Services may lead to the ports of metrics and health.
func (c *conversion) checkProxyPort(field string, port uint32) {
	switch port {
	case mesh.PortAgentStatus, mesh.PortEnvoyReadiness, mesh.PortEnvoyPrometheus:
	default:
		if mesh.IsProxyPort(port) {
			c.warn(faultf(field, "%d is a port of the proxy: sidecars do not route connections to it", port))
		}
	}
}

// itemOf returns the path of an item of a list, or the field itself if it holds a
// single address.
func itemOf(field string, i int) string {
	if strings.HasSuffix(field, "IP") {
		return field
	}
	return at(field, i)
}
