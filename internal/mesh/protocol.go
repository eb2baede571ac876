package mesh

import (
	"cmp"
	"strings"
)

// Protocol is the protocol of a service port.
type Protocol string

// The protocols that proxies treat differently. With Auto they detect the protocol of
// each connection.
const (
	Auto      Protocol = "auto"
	HTTP      Protocol = "http"
	HTTP2     Protocol = "http2"
	GRPC      Protocol = "grpc"
	GRPCWeb   Protocol = "grpc-web"
	TCP       Protocol = "tcp"
	TLS       Protocol = "tls"
	HTTPS     Protocol = "https"
	Mongo     Protocol = "mongo"
	MySQL     Protocol = "mysql"
	Redis     Protocol = "redis"
	UDP       Protocol = "udp"
	HTTPProxy Protocol = "http_proxy"
)

// IsHTTP reports whether proxies route requests of the protocol as HTTP.
func (p Protocol) IsHTTP() bool {
	switch p {
	case HTTP, HTTP2, GRPC, GRPCWeb, HTTPProxy:
		return true
	}
	return false
}

// IsHTTP2 reports whether the protocol is always HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// ParseProtocol parses a protocol name of Gateway and Sidecar ports and of Kubernetes
// port names. For an unknown name it returns Auto and false.
func ParseProtocol(s string) (Protocol, bool) {
	switch p := Protocol(strings.ToLower(s)); p {
	case HTTP, HTTP2, GRPC, GRPCWeb, TCP, TLS, HTTPS, Mongo, MySQL, Redis, UDP, HTTPProxy:
		return p, true
	}
	return Auto, false
}

// ServiceProtocol returns the protocol of a Kubernetes service port. As in Istio, UDP
// comes first, then appProtocol or, without one, the port's name, then well-known TCP ports, and Auto.
func ServiceProtocol(transport, appProtocol, name string, port uint32) Protocol {
	if strings.EqualFold(transport, "UDP") {
		return UDP
	}
	name = strings.ToLower(cmp.Or(appProtocol, name))
	switch name { // values of appProtocol that no name can have
	case "kubernetes.io/h2c":
		return HTTP2
	case "kubernetes.io/ws":
		return HTTP
	case "kubernetes.io/wss":
		return HTTPS
	}
	if name == string(GRPCWeb) || strings.HasPrefix(name, string(GRPCWeb)+"-") {
		return GRPCWeb
	}
	prefix, _, _ := strings.Cut(name, "-")
	if p, ok := ParseProtocol(prefix); ok && p != HTTPProxy && p != UDP {
		return p
	}
	switch port {
	case 25, 53, 3306, 27017: // the server may speak first: detection would wait in vain
		return TCP
	}
	return Auto
}
