package access

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// stripHost removes the port and the dot from a host that the connection manager removes.
func stripHost(host string, m *hcmv3.HttpConnectionManager, local uint32) string {
	colon := strings.LastIndexByte(host, ':')
	hasPort := colon > strings.LastIndexByte(host, ']')
	if hasPort {
		port, err := strconv.ParseUint(host[colon+1:], 10, 32)
		if err == nil && (m.GetStripAnyHostPort() || m.GetStripMatchingHostPort() && uint32(port) == local) {
			host, hasPort = host[:colon], false
		}
	}
	if !m.GetStripTrailingHostDot() {
		return host
	}
	if name, port, ok := strings.Cut(host, ":"); hasPort && ok {
		return strings.TrimSuffix(name, ".") + ":" + port
	}
	return strings.TrimSuffix(host, ".")
}

// underscores handles headers with underscores in their names. It returns false if Envoy
// refuses the request.
func (e *evaluation) underscores(m *hcmv3.HttpConnectionManager) bool {
	action := m.GetCommonHttpProtocolOptions().GetHeadersWithUnderscoresAction()
	if action == corev3.HttpProtocolOptions_ALLOW {
		return true
	}
	for _, h := range e.Headers {
		if !strings.Contains(h.Name, "_") {
			continue
		}
		if action == corev3.HttpProtocolOptions_REJECT_REQUEST {
			e.step(Step{Name: "HTTP", Verdict: Denied, Status: 400, Why: "header " + h.Name + " has an underscore in its name"})
			return false
		}
		e.remove(h.Name)
	}
	return true
}

// client returns the address of the client behind trusted proxies, zero if it is unknown.
func (e *evaluation) client(m *hcmv3.HttpConnectionManager) netip.Addr {
	if len(m.GetOriginalIpDetectionExtensions()) > 0 {
		return netip.Addr{}
	}
	hops := int(m.GetXffNumTrustedHops())
	if m.GetUseRemoteAddress().GetValue() {
		if hops == 0 {
			return e.Source
		}
		hops-- // Envoy appends the address of the connection itself
	}
	var list []string
	for _, h := range e.Headers {
		if strings.EqualFold(h.Name, "x-forwarded-for") {
			list = append(list, strings.Split(h.Value, ",")...)
		}
	}
	if e.Open && list == nil {
		return netip.Addr{}
	}
	if len(list) <= hops {
		return e.Source
	}
	slices.Reverse(list)
	ip, err := netip.ParseAddr(strings.TrimSpace(list[hops]))
	if err != nil {
		return e.Source
	}
	return ip
}
