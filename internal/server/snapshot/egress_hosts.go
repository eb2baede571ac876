package snapshot

import (
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// EgressHost is an entry of the hosts of a Sidecar's egress listener: <namespace>/<host>, or
// ~<namespace>/<host>, which excludes hosts that other entries import.
type EgressHost struct {
	Namespace string // "*" means all
	Host      string // may start with "*"
	Excludes  bool
}

// ParseEgressHost parses an entry of a Sidecar in the namespace own. The namespace ~ means
// ~*, and an entry without a namespace is for all.
func ParseEgressHost(text, own string) EgressHost {
	namespace, host, ok := strings.Cut(mesh.CanonicalHost(text), "/")
	if !ok {
		return EgressHost{Namespace: "*", Host: text}
	}
	namespace, excludes := strings.CutPrefix(namespace, "~")
	switch namespace {
	case "":
		namespace = "*"
	case ".":
		namespace = own
	}
	return EgressHost{Namespace: namespace, Host: host, Excludes: excludes}
}

// in reports whether the entry is for a namespace.
func (h EgressHost) in(namespace string) bool { return h.Namespace == "*" || h.Namespace == namespace }

// has reports whether the entry includes a host, which may be a wildcard, whole.
func (h EgressHost) has(host string) bool {
	if suffix, ok := strings.CutPrefix(h.Host, "*"); ok {
		return strings.HasSuffix(host, suffix)
	}
	return h.Host == host
}

// EgressHosts is the list of hosts of an egress listener of a Sidecar in the namespace Own.
type EgressHosts struct {
	Hosts []string
	Own   string
}

// Excludes reports whether an entry excludes a host of a namespace.
func (l EgressHosts) Excludes(namespace, host string) bool {
	return l.some(true, namespace, func(h EgressHost) bool { return h.has(host) })
}

// Imports reports whether the list imports the service of a host.
func (l EgressHosts) Imports(namespace, host string) bool {
	return l.some(false, namespace, func(h EgressHost) bool { return h.has(host) }) && !l.Excludes(namespace, host)
}

// ImportsSome reports whether the list imports some host of a VirtualService. Wildcards of both
// may overlap.
func (l EgressHosts) ImportsSome(namespace string, hosts []string) bool {
	for _, of := range hosts {
		if l.some(false, namespace, func(h EgressHost) bool { return HostsOverlap(of, h.Host) }) && !l.Excludes(namespace, of) {
			return true
		}
	}
	return false
}

// some reports whether is holds for an entry for the namespace that excludes, or that imports.
func (l EgressHosts) some(excludes bool, namespace string, is func(EgressHost) bool) bool {
	for _, text := range l.Hosts {
		if h := ParseEgressHost(text, l.Own); h.Excludes == excludes && h.in(namespace) && is(h) {
			return true
		}
	}
	return false
}

// ImportsAll reports whether the list imports every host and excludes none.
func (l EgressHosts) ImportsAll() bool {
	all := false
	for _, text := range l.Hosts {
		h := ParseEgressHost(text, l.Own)
		if h.Excludes {
			return false
		}
		all = all || h.Namespace == "*" && h.Host == "*"
	}
	return all
}
