package config

import (
	"net/netip"
	"net/url"
	"strconv"
)

// STS configures the exchange of tokens.
type STS struct {
	Addr netip.AddrPort // on loopback
	// Endpoint is the token endpoint of an OAuth server, whose roots are in RootFile, or the
	// roots of the system if it is empty. Without an endpoint, File holds the token.
	Endpoint       url.URL
	RootFile, File string
}

// sts resolves the exchange of tokens. There is none without a port.
func (r *resolver) sts(cfg *Config) {
	port := r.pick("sts-port", portText(r.flags.STSPort), "STS_PORT", "0")
	endpoint := r.pick("sts-endpoint", r.flags.STSEndpoint, "STS_TOKEN_ENDPOINT", "")
	file := r.pick("sts-file", r.flags.STSFile, "STS_TOKEN_FILE", "").value
	if port.value == "0" {
		if endpoint.value != "" || file != "" {
			r.errorf("%s: an exchange of tokens needs --sts-port (STS_PORT)", endpoint.from)
		}
		return
	}
	n, ok := parsePort(port.value)
	if !ok {
		r.errorf("%s=%q is not a port, 1 to 65535", port.from, port.value)
		return
	}
	s := &STS{Addr: netip.AddrPortFrom(cfg.Local, n), File: file, RootFile: r.pick("sts-root-ca", r.flags.STSRootCA, "STS_ROOT_CA", "").value}
	if !cfg.Local.IsLoopback() {
		r.errorf("%s: tokens are exchanged on a loopback address only, but --bind-address is %s", port.from, cfg.Local)
	}
	if (endpoint.value == "") == (file == "") {
		r.errorf("%s needs either --sts-endpoint (STS_TOKEN_ENDPOINT), where tokens are exchanged, or --sts-file (STS_TOKEN_FILE)", port.from)
		return
	}
	if endpoint.value != "" {
		u, err := url.Parse(endpoint.value)
		local := false
		if err == nil {
			addr, notIP := netip.ParseAddr(u.Hostname())
			local = notIP == nil && addr.IsLoopback()
		}
		switch {
		case err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "":
			r.errorf("%s is not a URL such as https://sts.example.com/token", endpoint.from) // which may hold a secret
			return
		case u.Scheme != "https" && (u.Scheme != "http" || !local):
			r.errorf("%s: want https, so that no token is readable on the way; http only to a loopback address", endpoint.from)
		}
		s.Endpoint = *u
	}
	cfg.STS = s
	cfg.Metadata["STS_PORT"] = port.value
}

func portText(port int) string {
	if port == 0 {
		return ""
	}
	return strconv.Itoa(port)
}
