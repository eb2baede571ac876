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

// Application connects to the application that an agent runs beside, for a probe. To
// an address of this machine it connects from Istio's address for that, 127.0.0.6 or
// ::6: where connections are redirected to Envoy, those are not, so that the
// application answers and not its Envoy.
func Application(ctx context.Context, network, address string) (net.Conn, error) {
	d := Guard{Loopback: true}.dialer()
	if from := sourceOfProbes(address); from != nil {
		d.LocalAddr = from
		conn, err := d.DialContext(ctx, network, address)
		if !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return conn, err
		}
		d.LocalAddr = nil // the machine does not have it: then nothing is redirected
	}
	return d.DialContext(ctx, network, address)
}

// sourceOfProbes is nil when address, host:port, is none of this machine's.
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

// ApplicationClient returns a client whose requests to the application, each over a
// connection of its own, end within timeout. It verifies no certificate, and gives
// back an answer that redirects.
func ApplicationClient(timeout time.Duration) *http.Client {
	transport := newTransport(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // the status alone counts, and nothing is sent that the application must not see
	})
	transport.DialContext = Application
	transport.DisableKeepAlives = true
	client := newClient(timeout, transport)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}
