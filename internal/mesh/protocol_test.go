package mesh

import "testing"

// TestServiceProtocol: appProtocol is read like the name of a port, and hides it.
func TestServiceProtocol(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		transport, app, name string
		port                 uint32
		want                 Protocol
	}{
		{"TCP", "", "http-web", 80, HTTP},
		{"TCP", "", "grpc-web-a", 80, GRPCWeb},
		{"TCP", "", "web", 80, Auto},
		{"TCP", "", "mysql", 3306, MySQL},
		{"TCP", "", "db", 3306, TCP},
		{"UDP", "http", "http", 80, UDP},
		{"TCP", "http-web", "tcp", 80, HTTP},
		{"TCP", "grpc-web-a", "tcp", 80, GRPCWeb},
		{"TCP", "HTTP2", "tcp", 80, HTTP2},
		{"TCP", "kubernetes.io/h2c", "tcp", 80, HTTP2},
		{"TCP", "example.com/custom", "http", 80, Auto},
		{"TCP", "example.com/custom", "tcp", 80, Auto},
		{"TCP", "web", "http", 80, Auto},
		{"TCP", "example.com/custom", "http", 3306, TCP},
		{"TCP", "http_proxy", "http", 80, Auto},
	} {
		if got := ServiceProtocol(c.transport, c.app, c.name, c.port); got != c.want {
			t.Errorf("%s port %d with name %q and appProtocol %q: %s, want %s", c.transport, c.port, c.name, c.app, got, c.want)
		}
	}
}
