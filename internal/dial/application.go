package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// Application connects to the application of an agent's pod, for a probe. For an
// address of this machine the source address is 127.0.0.6 or ::6. Istio's rules do
// not redirect connections from there to Envoy, so the application itself answers.
func Application(ctx context.Context, network, address string) (net.Conn, error) {
	d := Guard{Loopback: true}.dialer()
	if from := sourceOfProbes(address); from != nil {
		d.LocalAddr = from
		conn, err := d.DialContext(ctx, network, address)
		if !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return conn, err
		}
		d.LocalAddr = nil // a machine without ::6 redirects nothing
	}
	return d.DialContext(ctx, network, address)
}

// sourceOfProbes returns the source address for probes of address, host:port. It is nil
// if the address does not belong to this machine.
func sourceOfProbes(address string) net.Addr {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil
	}
	at := to.Addr().Unmap()
	if !at.IsLoopback() {
		own, err := net.InterfaceAddrs()
		if err != nil || !slices.ContainsFunc(own, func(a net.Addr) bool {
			prefix, err := netip.ParsePrefix(a.String())
			return err == nil && prefix.Addr() == at
		}) {
			return nil
		}
	}
	if at.Is4() {
		return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 6)}
	}
	return &net.TCPAddr{IP: netip.AddrFrom16([16]byte{15: 6}).AsSlice()}
}

// ApplicationClient returns a client for probes of the application. Each request has
// its own connection and ends within timeout. The client verifies no certificate and
// returns redirects as responses.
func ApplicationClient(timeout time.Duration) *http.Client {
	transport := newTransport(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // a probe sends no secrets, and only the status counts
	})
	transport.DialContext = Application
	transport.ForceAttemptHTTP2 = true // as the kubelet, for servers without HTTP/1.1
	transport.DisableKeepAlives = true
	client := newClient(timeout, transport)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}
