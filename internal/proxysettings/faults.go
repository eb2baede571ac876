// Package proxysettings finds the settings of proxies with which an agent does not start.
package proxysettings

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Bounds of settings: larger numbers are mistakes.
const (
	MaxConcurrency    = 1024
	MaxDuration       = 24 * time.Hour
	MaxStatTags       = 100 // Envoy compares each new statistic with each tag
	MaxProbeSeconds   = 24 * 60 * 60
	MaxProbeThreshold = 1000
)

// Fault is a field of a ProxyConfig with a value that the agent refuses.
type Fault struct {
	Field string
	Err   error
}

type faults []Fault

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, Fault{field, fmt.Errorf(format, args...)})
}

// Faults returns the fields of a ProxyConfig above Istio's defaults that the agent refuses, so that
// a pod with them would not start.
func Faults(pc *meshv1alpha1.ProxyConfig) []Fault {
	var out faults
	out.ports(pc)
	if n := pc.GetConcurrency().GetValue(); n < 0 || n > MaxConcurrency {
		out.add("concurrency", "%d: want 0 (one thread a core) to %d", n, MaxConcurrency)
	}
	out.duration("drainDuration", pc.GetDrainDuration())
	out.duration("terminationDrainDuration", pc.GetTerminationDrainDuration())
	out.duration("fileFlushInterval", pc.GetFileFlushInterval())
	if pc.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_NONE {
		out.add("controlPlaneAuthPolicy", "NONE is not supported: the agent talks to the control plane over TLS only")
	}
	for address := range strings.SplitSeq(pc.GetDiscoveryAddress(), ",") {
		if err := addressFault(strings.TrimSpace(address)); err != nil {
			out.add("discoveryAddress", "%q: %w", address, err)
			break
		}
	}
	out.statTags(pc.GetExtraStatTags())
	out.probe(pc.GetReadinessProbe())
	out.metadata(pc)
	return out
}

func (f *faults) ports(pc *meshv1alpha1.ProxyConfig) {
	uses := []struct {
		field string
		port  int
	}{
		{"proxyMetadata.ENVOY_STATUS_PORT", mesh.PortEnvoyReadiness},
		{"proxyMetadata.ENVOY_PROMETHEUS_PORT", mesh.PortEnvoyPrometheus},
		{"proxyAdminPort", int(pc.GetProxyAdminPort())},
		{"statusPort", int(pc.GetStatusPort())},
	}
	taken := map[int]string{}
	for _, u := range uses {
		if _, name, ok := strings.Cut(u.field, "."); ok && pc.GetProxyMetadata()[name] != "" {
			port, err := strconv.ParseUint(pc.GetProxyMetadata()[name], 10, 16)
			if u.port = int(port); err != nil {
				u.port = 0
			}
		}
		if u.field == "statusPort" && u.port == 0 { // none for others
			u.port = mesh.PortAgentStatus
		}
		if u.port < 1 || u.port > 65535 {
			f.add(u.field, "%d is not a port, 1 to 65535", u.port)
			continue
		}
		if other, clash := taken[u.port]; clash {
			f.add(u.field, "port %d is also that of %s: each needs a port of its own", u.port, strings.TrimPrefix(other, "proxyMetadata."))
		}
		taken[u.port] = u.field
	}
}

func (f *faults) duration(field string, d *durationpb.Duration) {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() > MaxDuration) {
		f.add(field, "is not a duration from 0s to 24h")
	}
}

func addressFault(address string) error {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("is not host:port")
	}
	port, err := strconv.ParseUint(text, 10, 16)
	switch _, notIP := netip.ParseAddr(host); {
	case err != nil || port == 0:
		return fmt.Errorf("%q is not a port, 1 to 65535", text)
	case port == mesh.PortPlaintextXDS:
		return fmt.Errorf("is the port without TLS, which would expose the token: use port %d", mesh.PortSecureXDS)
	case notIP != nil && !mesh.IsDNSName(host):
		return fmt.Errorf("%q is neither a DNS name nor an IP address", host)
	}
	return nil
}

func (f *faults) statTags(given []string) {
	var tags []string
	for _, name := range given {
		name = strings.TrimSpace(name)
		switch {
		case name == "" || slices.Contains(tags, name):
		case !mesh.IsStatTag(name):
			f.add("extraStatTags", "%q is not the name of a tag: want letters, digits, '_', '-' and '.'", name)
		default:
			tags = append(tags, name)
		}
	}
	if len(tags) > MaxStatTags {
		f.add("extraStatTags", "%d tags: want at most %d", len(tags), MaxStatTags)
	}
}

func (f *faults) probe(p *networkingv1alpha3.ReadinessProbe) {
	if p == nil {
		return
	}
	for _, n := range []struct {
		field string
		given int32
		most  int32
	}{
		{"initialDelaySeconds", p.GetInitialDelaySeconds(), MaxProbeSeconds},
		{"timeoutSeconds", p.GetTimeoutSeconds(), MaxProbeSeconds},
		{"periodSeconds", p.GetPeriodSeconds(), MaxProbeSeconds},
		{"successThreshold", p.GetSuccessThreshold(), MaxProbeThreshold},
		{"failureThreshold", p.GetFailureThreshold(), MaxProbeThreshold},
	} {
		if n.given < 0 || n.given > n.most {
			f.add("readinessProbe", "%s is %d: want 0 (for the default) to %d", n.field, n.given, n.most)
		}
	}
	port := func(n uint32) {
		if n == 0 || n > 65535 {
			f.add("readinessProbe", "port %d: want 1 to 65535", n)
		}
	}
	switch m := p.GetHealthCheckMethod().(type) {
	case *networkingv1alpha3.ReadinessProbe_HttpGet:
		port(m.HttpGet.GetPort())
	case *networkingv1alpha3.ReadinessProbe_TcpSocket:
		port(m.TcpSocket.GetPort())
	case *networkingv1alpha3.ReadinessProbe_Grpc:
		port(m.Grpc.GetPort())
	case *networkingv1alpha3.ReadinessProbe_Exec:
		if command := m.Exec.GetCommand(); len(command) == 0 || command[0] == "" {
			f.add("readinessProbe", "exec.command names no program")
		}
	default:
		f.add("readinessProbe", "has no check: want httpGet, tcpSocket, grpc or exec")
	}
}
