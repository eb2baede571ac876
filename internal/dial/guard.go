package dial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Guard connects to addresses from untrusted sources, such as the server in a
// kubeconfig. It refuses addresses that no API server on another machine can have. It
// checks the IP address of every connection, after names are resolved. The zero Guard
// is the strictest.
type Guard struct {
	// Loopback allows loopback addresses. In a pod these lead to the pod's own
	// containers, which may trust local clients.
	Loopback bool
	// LinkLocal allows link-local addresses and metadata services.
	LinkLocal bool
	// Refused holds further networks whose addresses are refused.
	Refused []netip.Prefix
	// Lookup resolves a host name. Nil means the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// RefusedError reports an address that a Guard refuses.
type RefusedError struct {
	Address netip.Addr
	Reason  string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("address %s %s: meshctl does not connect to it", e.Address, e.Reason)
}

// Check returns a *RefusedError if the guard refuses the address.
func (g Guard) Check(addr netip.Addr) error {
	reason, allowed := "", false
	switch mesh.AddressKindOf(addr) {
	case mesh.AddressUnspecified:
		reason = "is unspecified"
	case mesh.AddressMulticast:
		reason = "is a multicast or broadcast address"
	case mesh.AddressLoopback:
		reason, allowed = "is loopback", g.Loopback
	case mesh.AddressLinkLocal, mesh.AddressMetadata:
		reason, allowed = "is link-local or a metadata service", g.LinkLocal
	case mesh.AddressOrdinary:
		allowed = true
	}
	plain := addr.WithZone("").Unmap()
	if slices.ContainsFunc(g.Refused, func(n netip.Prefix) bool { return n.Contains(plain) }) {
		reason, allowed = "is in a network that is refused", false
	}
	if allowed {
		return nil
	}
	return &RefusedError{Address: addr, Reason: reason}
}

// dialer returns a dialer that connects only to addresses that pass Check.
func (g Guard) dialer() *net.Dialer {
	return &net.Dialer{
		Timeout: connectTimeout, KeepAlive: 30 * time.Second,
		// Check the final address, no matter how it was resolved.
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("address %q: %w", address, err)
			}
			return g.Check(at.Addr())
		},
	}
}

// DialContext connects to address, host:port. It tries the addresses of a host name in
// order, without refused ones. It can be the Dial of a rest.Config.
func (g Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d := g.dialer()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil || g.Lookup == nil {
		return d.DialContext(ctx, network, address)
	}
	addrs, err := g.Lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	var errs []error
	for _, a := range addrs {
		conn, err := d.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, cmp.Or(errors.Join(errs...), fmt.Errorf("resolve %s: no address", host))
}

// Bounded returns a round tripper for responses of untrusted hosts. A redirect is an
// error, so that no credential reaches another host. A body longer than limit bytes is
// an error, too. Watches have no limit: their readers bound each event.
func Bounded(next http.RoundTripper, limit int64) http.RoundTripper {
	return &bounded{next: next, limit: limit}
}

type bounded struct {
	next      http.RoundTripper
	limit     int64
	redirects bool // are passed on
}

// WrappedRoundTripper lets client-go find the inner round tripper.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if to := resp.Header.Get("Location"); resp.StatusCode >= 300 && resp.StatusCode < 400 && to != "" && !b.redirects {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s redirects to another address, which is not followed", req.URL.Host)
	}
	if watch := req.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		return resp, nil
	}
	if resp.ContentLength > b.limit {
		_ = resp.Body.Close()
		return nil, b.tooLarge(req)
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: b.limit, tooLarge: b.tooLarge(req)}
	return resp, nil
}

func (b *bounded) tooLarge(req *http.Request) error {
	return fmt.Errorf("the response of %s to %s %s is larger than %d bytes", req.URL.Host, req.Method, req.URL.Path, b.limit)
}

// boundedBody fails at its limit. An early end could look like the whole body.
type boundedBody struct {
	io.ReadCloser
	left     int64
	tooLarge error
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, b.tooLarge
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more byte shows whether the body ends
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return n - 1, b.tooLarge
	}
	return n, err
}
