package source

import (
	"fmt"
	"net/netip"
	"path"
	"strings"
	"unicode"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

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
	if _, err := fields.ParseAddr(host); err == nil {
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
func (c *Converter) socketFault(field, address string) *fields.Error {
	if snapshot.IsUnixSocket(address) {
		if why := c.refusedSocket(address); why != "" {
			return fields.Faultf(field, "%q %s", address, why)
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
func (c *conversion) addresses(field string, texts []string) ([]netip.Addr, *fields.Error) {
	out := make([]netip.Addr, 0, len(texts))
	for i, text := range texts {
		at := fields.ItemOf(field, i)
		a, err := fields.ParseAddr(text)
		if err != nil {
			return nil, &fields.Error{Field: at, Err: err}
		}
		if why := c.refused(a); why != "" {
			c.warn(fields.Faultf(at, "%s %s: it is not used", a, why))
			continue
		}
		out = append(out, a)
	}
	return out, nil
}

// checkProxyPort reports a port of a workload at which proxies listen by default, and which no
// application has. Services may lead to the ports of metrics and health.
func (c *conversion) checkProxyPort(field string, port uint32) {
	switch port {
	case mesh.PortAgentStatus, mesh.PortEnvoyReadiness, mesh.PortEnvoyPrometheus:
	default:
		if mesh.IsProxyPort(port) {
			c.warn(fields.Faultf(field, "%d is a port of the proxy: sidecars do not route connections to it", port))
		}
	}
}
