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
	"syscall"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Guard connects to addresses that others chose, such as the server of a
// kubeconfig, and refuses those that no API server of another machine has. It
// looks at the address itself, after names are resolved, at every connection.
// The zero Guard refuses the most.
type Guard struct {
	// Loopback lets loopback addresses pass. In a pod they are the pod's own
	// containers, which trust them.
	Loopback bool
	// LinkLocal lets link-local addresses and those of metadata services pass.
	LinkLocal bool
	// Lookup resolves a host name; default: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// RefusedError says that an address is not connected to.
type RefusedError struct {
	Address netip.Addr
	Reason  string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("address %s %s: it is not connected to", e.Address, e.Reason)
}

// Check returns a *RefusedError when the address is not connected to.
func (g Guard) Check(addr netip.Addr) error {
	reason := ""
	switch mesh.AddressKindOf(addr) {
	case mesh.AddressUnspecified:
		reason = "is unspecified"
	case mesh.AddressMulticast:
		reason = "is a multicast or broadcast address"
	case mesh.AddressLoopback:
		if g.Loopback {
			return nil
		}
		reason = "is loopback"
	case mesh.AddressLinkLocal, mesh.AddressMetadata:
		if g.LinkLocal {
			return nil
		}
		reason = "is link-local or a metadata service"
	case mesh.AddressOrdinary:
		return nil
	}
	return &RefusedError{Address: addr, Reason: reason}
}

// dialer connects where Check lets it.
func (g Guard) dialer() *net.Dialer {
	return &net.Dialer{
		Timeout: connectTimeout, KeepAlive: 30 * time.Second,
		// What is connected to decides, however it was found.
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("address %q: %w", address, err)
			}
			return g.Check(at.Addr())
		},
	}
}

// DialContext connects to address, host:port. Of the addresses of a name it
// tries those that are not refused, in order. It can be the Dial of a
// rest.Config.
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

// Bounded returns a round tripper for answers of hosts that others chose: it
// follows no redirect, so that no credential goes to where one points, and cuts
// bodies at limit bytes. Streams that are meant to last, those of watches, are
// not cut: who reads them bounds each event.
func Bounded(next http.RoundTripper, limit int64) http.RoundTripper {
	return &bounded{next: next, limit: limit}
}

type bounded struct {
	next  http.RoundTripper
	limit int64
}

// WrappedRoundTripper tells client-go what is below.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if to := resp.Header.Get("Location"); resp.StatusCode >= 300 && resp.StatusCode < 400 && to != "" {
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
	return fmt.Errorf("the answer of %s to %s %s is larger than %d bytes", req.URL.Host, req.Method, req.URL.Path, b.limit)
}

// boundedBody fails instead of ending early, which could look like the whole.
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
		p = p[:b.left+1] // one more tells whether it ends
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return n - 1, b.tooLarge
	}
	return n, err
}
