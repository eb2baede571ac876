package create

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/order"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

const probeTimeout = 3 * time.Second

// ServerCA is a CA that may sign the certificate of an API server.
type ServerCA struct {
	Name string // for example "the kubeconfig's"
	// PEM is nil for the roots of the system.
	PEM []byte
}

// Address is a possible address of the API server.
type Address struct {
	URL    string
	Source string // the object that names the address

	// ProbeAddresses sets the fields below.

	// CA is the CA that signed the server's certificate, nil if it is unknown.
	CA *ServerCA
	// TLSServerName is set if the certificate is for this name instead of the address.
	TLSServerName string
	// Err is the reason why the address is unusable. Unreached is set if the server
	// sent no certificate.
	Err       error
	Unreached bool
}

// Loopback reports whether the address is a loopback address.
func (c *Address) Loopback() bool { return remotesecret.IsLoopback(c.URL) }

// ProbeAddresses connects to each address and finds the first of the CAs that signed its
// certificate. serverName is the SNI; empty means the host.
func ProbeAddresses(ctx context.Context, candidates []Address, cas []ServerCA, serverName string, now time.Time) {
	var group sync.WaitGroup
	for i := range candidates {
		group.Go(func() { candidates[i].probe(ctx, cas, serverName, now) })
	}
	group.Wait()
}

func (c *Address) probe(ctx context.Context, cas []ServerCA, serverName string, now time.Time) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		c.Err = errors.New("is no URL of the form https://HOST:PORT")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	chain, err := dial.ShownChain(ctx, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), serverName)
	if err != nil {
		c.Err, c.Unreached = err, true
		return
	}
	for i := range cas {
		if signs(&cas[i], chain, now) {
			c.CA = &cas[i]
			break
		}
	}
	if c.CA == nil {
		c.Err = fmt.Errorf("its certificate, of %q, is signed by none of: %s", chain[0].Issuer, caNames(cas))
		return
	}
	name := cmp.Or(serverName, u.Hostname())
	if err := chain[0].VerifyHostname(name); err == nil {
		return
	}
	if serverName != "" || len(chain[0].DNSNames) == 0 {
		c.Err = fmt.Errorf("its certificate is not for %s", name)
		return
	}
	c.TLSServerName = bestServerName(chain[0].DNSNames)
}

// bestServerName prefers the names that every API server has for pods.
func bestServerName(names []string) string {
	for _, usual := range []string{"kubernetes.default.svc", "kubernetes.default", "kubernetes"} {
		if slices.Contains(names, usual) {
			return usual
		}
	}
	return names[0]
}

func caNames(cas []ServerCA) string {
	var out []string
	for _, ca := range cas {
		out = append(out, ca.Name)
	}
	return strings.Join(out, ", ")
}

// signs reports whether the chain leads to the CA, for any name.
func signs(ca *ServerCA, chain []*x509.Certificate, now time.Time) bool {
	o := x509.VerifyOptions{Intermediates: x509.NewCertPool(), CurrentTime: now}
	for _, cert := range chain[1:] {
		o.Intermediates.AddCert(cert)
	}
	if ca.PEM != nil {
		o.Roots = x509.NewCertPool()
		if !o.Roots.AppendCertsFromPEM(ca.PEM) {
			return false
		}
	}
	_, err := chain[0].Verify(o)
	return err == nil
}

// RankAddresses sorts probed addresses. The most likely to work come first.
func RankAddresses(candidates []Address) {
	badness := func(c Address) int {
		switch {
		case c.Unreached:
			return 4
		case c.Err != nil:
			return 3
		case c.Loopback():
			return 2
		case c.TLSServerName != "":
			return 1
		}
		return 0
	}
	order.Stable(candidates, func(a, b Address) int { return badness(a) - badness(b) })
}

// Errors of BestAddress.
var (
	ErrNoAddress    = errors.New("the API server was found at no address")
	ErrLoopbackOnly = errors.New("the API server was found at loopback addresses only, which are the reader's own")
)

// BestAddress returns the first usable address of a ranked list. It returns a loopback
// address only with force.
func BestAddress(candidates []Address, force bool) (*Address, error) {
	for i := range candidates {
		if c := &candidates[i]; c.Err == nil && (force || !c.Loopback()) {
			return c, nil
		}
	}
	if slices.ContainsFunc(candidates, func(c Address) bool { return c.Err == nil }) {
		return nil, ErrLoopbackOnly
	}
	return nil, ErrNoAddress
}
