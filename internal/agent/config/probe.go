package config

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/agent/probe"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxysettings"
)

// Bounds of a probe: larger numbers are mistakes.
const (
	maxProbeSeconds   = proxysettings.MaxProbeSeconds
	maxProbeThreshold = proxysettings.MaxProbeThreshold
)

// readinessProbe names the place of fields in errors.
const readinessProbe = " of readinessProbe of PROXY_CONFIG"

// probe resolves the probe of the application. It needs a WorkloadEntry to report the health
// of.
func (r *resolver) probe(cfg *Config, p *networkingv1alpha3.ReadinessProbe) {
	if p == nil {
		return
	}
	number := func(field string, given int32, def, most int) int {
		if given < 0 || int(given) > most {
			r.errorf("%s%s is %d, want 0 (for the default, %d) to %d", field, readinessProbe, given, def, most)
		}
		if given == 0 {
			return def
		}
		return int(given)
	}
	seconds := func(field string, given int32, def int) time.Duration {
		return time.Duration(number(field, given, def, maxProbeSeconds)) * time.Second
	}
	made := &probe.Config{
		InitialDelay:     seconds("initialDelaySeconds", p.GetInitialDelaySeconds(), 0),
		Timeout:          seconds("timeoutSeconds", p.GetTimeoutSeconds(), 1),
		Period:           seconds("periodSeconds", p.GetPeriodSeconds(), 10),
		SuccessThreshold: number("successThreshold", p.GetSuccessThreshold(), 1, maxProbeThreshold),
		FailureThreshold: number("failureThreshold", p.GetFailureThreshold(), 3, maxProbeThreshold),
		Check:            r.applicationCheck(r.applicationAddress(cfg), p),
	}
	if cfg.Metadata["WORKLOAD_ENTRY"] == nil && cfg.Metadata["AUTO_REGISTER_GROUP"] == nil {
		r.warnf("PROXY_CONFIG: readinessProbe has no effect without ISTIO_META_WORKLOAD_ENTRY or ISTIO_META_AUTO_REGISTER_GROUP, which name the WorkloadEntry whose health it is")
		return
	}
	cfg.Probe = made
}

// applicationCheck resolves the check of the application, by default at the address own.
func (r *resolver) applicationCheck(own netip.Addr, p *networkingv1alpha3.ReadinessProbe) func(context.Context) error {
	f := probeFields{r, readinessProbe}
	switch m := p.GetHealthCheckMethod().(type) {
	case *networkingv1alpha3.ReadinessProbe_HttpGet:
		if target, header, ok := f.http(own, m.HttpGet); ok {
			return probe.HTTP(target, header)
		}
	case *networkingv1alpha3.ReadinessProbe_TcpSocket:
		return probe.TCP(f.target("tcpSocket", own, m.TcpSocket.GetHost(), m.TcpSocket.GetPort()))
	case *networkingv1alpha3.ReadinessProbe_Grpc:
		return probe.GRPC(f.target("grpc", own, "", m.Grpc.GetPort()), m.Grpc.GetService())
	case *networkingv1alpha3.ReadinessProbe_Exec:
		if command := m.Exec.GetCommand(); len(command) > 0 && command[0] != "" {
			return probe.Exec(command, r.environ)
		}
		r.errorf("exec.command%s names no program", readinessProbe)
	default:
		r.errorf("readinessProbe of PROXY_CONFIG has no check: want httpGet, tcpSocket, grpc or exec")
	}
	return nil
}

// probeFields resolves the fields of a probe. of names the probe in errors.
type probeFields struct {
	r  *resolver
	of string
}

// target returns host:port of a check. An empty host is the address own.
func (f probeFields) target(check string, own netip.Addr, host string, port uint32) string {
	if port == 0 || port > 65535 {
		f.r.errorf("%s.port%s is %d, want 1 to 65535", check, f.of, port)
	}
	host = cmp.Or(host, own.String())
	if _, err := netip.ParseAddr(host); err != nil && !mesh.IsDNSName(strings.ToLower(host)) {
		f.r.errorf("%s.host%s is %q, neither a DNS name nor an IP address", check, f.of, host)
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// http returns the URL and the headers of a request to the application.
func (f probeFields) http(own netip.Addr, get *networkingv1alpha3.HTTPHealthCheckConfig) (target url.URL, header http.Header, ok bool) {
	path, ok := urlPath(get.GetPath())
	if !ok {
		f.r.errorf("httpGet.path%s is not the path of a URL", f.of) // which may hold a secret
		return url.URL{}, nil, false
	}
	path.Scheme = "http"
	switch scheme := strings.ToLower(get.GetScheme()); scheme {
	case "":
	case "http", "https":
		path.Scheme = scheme
	default:
		f.r.errorf("httpGet.scheme%s is %q, want HTTP or HTTPS", f.of, get.GetScheme())
	}
	path.Host = f.target("httpGet", own, get.GetHost(), get.GetPort())
	header = http.Header{}
	for _, h := range get.GetHttpHeaders() {
		if h.GetName() == "" || strings.Trim(h.GetName(), headerLetters) != "" {
			f.r.errorf("httpGet.httpHeaders%s: %q is not the name of a header", f.of, h.GetName())
			continue
		}
		if strings.ContainsFunc(h.GetValue(), func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			f.r.errorf("httpGet.httpHeaders%s: the value of %s has characters that no header may have", f.of, h.GetName())
		}
		header.Add(h.GetName(), h.GetValue())
	}
	return *path, header, true
}

// urlPath returns a URL of only the path, which may lack its slash, and its query.
func urlPath(path string) (*url.URL, bool) {
	u, err := url.Parse("/" + strings.TrimPrefix(path, "/"))
	return u, err == nil && u.Host == ""
}

const headerLetters = "-_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
