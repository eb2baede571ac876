package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
)

// Port is a port that the proxy or its agent listens on.
type Port struct {
	Addr netip.AddrPort
	Flag string // that chooses another port
}

// ports reports a port that another program uses.
func (c *Config) ports(ctx context.Context) (string, error) {
	for _, p := range c.Ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.Addr.String())
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return "", &problem{fmt.Sprintf("another program listens on %s", p.Addr), "end that program (ss -ltnp shows it), or choose another port with " + p.Flag}
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			return "", &problem{fmt.Sprintf("%s is no address of this machine", p.Addr.Addr()), "correct --bind-address, or leave it out"}
		case errors.Is(err, syscall.EACCES):
			return "", &problem{fmt.Sprintf("this user may not listen on %s", p.Addr), "choose a port from 1024 with " + p.Flag}
		case err != nil:
			return "", err
		}
		if err := l.Close(); err != nil {
			return "", err
		}
	}
	return "free", nil
}

const maxRootFile = 1 << 20 // bytes

func (c *Config) roots() (string, []*x509.Certificate, error) {
	const mount = "mount the ConfigMap istio-ca-root-cert of the namespace, or name the file with --root-ca"
	data, err := files.Read(c.RootFile, maxRootFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil, &problem{fmt.Sprintf("there is no file %s with the roots of the mesh", c.RootFile), mount}
	case err != nil:
		return "", nil, err
	}
	roots, err := certs.ParseCerts(data)
	if err != nil || len(roots) == 0 {
		return "", nil, &problem{fmt.Sprintf("%s holds no certificates: %v", c.RootFile, err), mount}
	}
	for _, r := range roots {
		if c.Now().After(r.NotAfter) {
			return "", nil, &problem{
				fmt.Sprintf("the root %s in %s expired at %s", r.Subject, c.RootFile, show(r.NotAfter)),
				"rotate the root of the mesh (meshctl certs rotate-root); if the date is wrong, set the clock of this machine",
			}
		}
	}
	return list(roots), roots, nil
}

// list names certificates.
func list(all []*x509.Certificate) string {
	var names []string
	for _, cert := range all {
		names = append(names, fmt.Sprintf("%s (SHA-256 %.16s…)", cert.Subject, certs.Fingerprint(cert)))
	}
	return strings.Join(names, ", ")
}

func (c *Config) resolve(ctx context.Context) (string, error) {
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return "", err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return host + " is an address", nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		cause, fix := fmt.Sprintf("the name %s of the control plane does not resolve: %v", host, err), "correct --discovery-address or --ca-address (CA_ADDR)"
		if dns, ok := errors.AsType[*net.DNSError](err); ok && !dns.IsNotFound {
			fix = "the name server does not answer: let a NetworkPolicy permit DNS (UDP and TCP port 53), and check /etc/resolv.conf"
		}
		return "", &problem{cause, fix}
	}
	return fmt.Sprintf("%s is %v", host, addrs), nil
}

func (c *Config) connect(ctx context.Context) (string, error) {
	conn, err := dial.Guard{Loopback: true, LinkLocal: true}.DialContext(ctx, "tcp", c.Addr)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "", &problem{fmt.Sprintf("%s refuses connections", c.Addr), "start the control plane, and compare the port with its --secure-grpc-addr (15012)"}
	case err != nil:
		return "", &problem{fmt.Sprintf("no connection to %s: %v", c.Addr, err), "let firewalls and NetworkPolicies permit TCP to this port, and check that a control plane is ready behind the address"}
	}
	return "connected from " + conn.LocalAddr().String() + " to " + conn.RemoteAddr().String(), conn.Close()
}

func (c *Config) handshake(ctx context.Context, roots []*x509.Certificate) (string, error) {
	chain, err := dial.ShownChain(ctx, c.Addr, c.ServerName)
	if err == nil && len(chain) == 0 {
		err = errors.New("the server shows no certificate")
	}
	if err != nil {
		return "", &problem{fmt.Sprintf("%s does not speak TLS: %v", c.Addr, err), "use the port with TLS, 15012; a proxy in between must pass TLS through"}
	}
	now := c.Now()
	opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), DNSName: c.ServerName, CurrentTime: now}
	for _, r := range roots {
		opts.Roots.AddCert(r)
	}
	for _, i := range chain[1:] {
		opts.Intermediates.AddCert(i)
	}
	leaf := chain[0]
	_, err = leaf.Verify(opts)
	if err == nil {
		return fmt.Sprintf("the certificate of %s is valid until %s", c.ServerName, show(leaf.NotAfter)), nil
	}
	switch {
	case now.Before(leaf.NotBefore):
		return "", clockBehind(now, leaf.NotBefore, "the control plane's certificate begins")
	case now.After(leaf.NotAfter):
		return "", &problem{
			fmt.Sprintf("the control plane's certificate expired at %s, and the clock of this machine shows %s", show(leaf.NotAfter), show(now)),
			"set the clock if it is wrong; otherwise renew the certificate of the control plane",
		}
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "", &problem{
			fmt.Sprintf("the certificate at %s is for %s, not for %s", c.Addr, strings.Join(leaf.DNSNames, ", "), c.ServerName),
			"correct the address, or set ISTIOD_SAN to one of these names",
		}
	}
	last := chain[len(chain)-1]
	return "", &problem{
		fmt.Sprintf("the certificate at %s leads to no root in %s: it was signed by %s, and the roots are %s", c.Addr, c.RootFile, last.Issuer, list(roots)),
		"put the root of this control plane into the file: the mesh has another root, or the address is of another mesh",
	}
}

// sign requests a certificate with a token that is for the audiences.
func (c *Config) sign(ctx context.Context, audiences []string) (string, error) {
	err := c.Sign(ctx)
	if err == nil {
		return "the certificate authority signs", nil
	}
	fix := "the log of the control plane has more"
	switch status.Code(err) {
	case codes.Unauthenticated:
		if c.Audience != "" && len(audiences) > 0 && !slices.Contains(audiences, c.Audience) {
			return "", &problem{
				fmt.Sprintf("the control plane refuses the token, which is for the audience %q, not for %s: %v", audiences, c.Audience, err),
				"set audience: " + c.Audience + " of the projected token, create one with kubectl create token --audience " + c.Audience + ", or name its audience in --token-audience of serve",
			}
		}
		fix = "the control plane does not trust the issuer of the token, or not for this cluster: compare --cluster-id (ISTIO_META_CLUSTER_ID) with its clusters, and its --token-audience and keys"
	case codes.PermissionDenied:
		fix = "the control plane does not allow this identity: its log names the rule"
	case codes.Unavailable, codes.DeadlineExceeded:
		fix = "the control plane answers no request now: its /ready?verbose has the reason"
	case codes.ResourceExhausted:
		fix = "the control plane is at a limit for this caller: its log names the flag"
	default:
	}
	return "", &problem{err.Error(), fix}
}
