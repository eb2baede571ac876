package mesh

import "strings"

// Protocol is what a service port speaks.
type Protocol string

// The protocols that generation tells apart. Auto means: detected on the
// connection.
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

// IsHTTP reports whether requests of the protocol are routed by HTTP.
func (p Protocol) IsHTTP() bool {
	switch p {
	case HTTP, HTTP2, GRPC, GRPCWeb, HTTPProxy:
		return true
	}
	return false
}

// IsHTTP2 reports whether the protocol is always HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// ParseProtocol reads the protocol names of Istio's Gateway and Sidecar ports
// and of Kubernetes port names; ok is false for an unknown one.
func ParseProtocol(s string) (Protocol, bool) {
	switch p := Protocol(strings.ToLower(s)); p {
	case HTTP, HTTP2, GRPC, GRPCWeb, TCP, TLS, HTTPS, Mongo, MySQL, Redis, UDP, HTTPProxy:
		return p, true
	}
	return Auto, false
}

// ServiceProtocol decides the protocol of a Kubernetes service port, in
// Istio's order: UDP stays UDP, appProtocol wins over the port's name, then
// the well-known TCP ports, then detection.
func ServiceProtocol(transport, appProtocol, name string, port uint32) Protocol {
	if strings.EqualFold(transport, "UDP") {
		return UDP
	}
	switch app := strings.ToLower(appProtocol); app {
	case "":
	case "kubernetes.io/h2c":
		return HTTP2
	case "kubernetes.io/ws":
		return HTTP
	case "kubernetes.io/wss":
		return HTTPS
	default:
		if p, ok := ParseProtocol(app); ok && p != HTTPProxy && p != UDP {
			return p
		}
	}
	lower := strings.ToLower(name)
	if lower == string(GRPCWeb) || strings.HasPrefix(lower, string(GRPCWeb)+"-") {
		return GRPCWeb
	}
	prefix, _, _ := strings.Cut(lower, "-")
	if p, ok := ParseProtocol(prefix); ok && p != HTTPProxy && p != UDP {
		return p
	}
	switch port {
	case 25, 53, 3306, 27017: // server speaks first: detection would wait for ever
		return TCP
	}
	return Auto
}
