package dial

import (
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

// HTTPProxyClient is HTTPClient without TLS whose requests go through the
// HTTP proxy at proxy. It keeps up to connections idle connections to it.
func HTTPProxyClient(timeout time.Duration, proxy netip.AddrPort, connections int) *http.Client {
	transport := newTransport(nil, tcpDialer().DialContext)
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.String()})
	transport.MaxIdleConnsPerHost = connections
	return newClient(timeout, transport)
}
