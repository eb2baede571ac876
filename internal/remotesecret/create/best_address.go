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
	"github.com/meshctl/meshctl/internal/remotesecret"
)

const probeTimeout = 3 * time.Second

// ServerCA is a CA that may sign the certificate of an API server.
type ServerCA struct {
	Name string // for example "the kubeconfig's"
	// PEM is nil for the roots of the system.
	PEM []byte
}

// system reports whether these are the roots of the system, which sign for others, too.
func (ca *ServerCA) system() bool { return ca.PEM == nil }

// Address is a possible address of the API server.
type Address struct {
	URL    string
	Source string // the object that names the address
	// Chosen is set for an address of the kubeconfig or of a flag. Another address may be that of
	// anyone who can write the object, so its server must prove that it is the API server: by a
	// certificate for a name that only the API server has.
	Chosen bool

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

// Known is what is known about an API server before its addresses are probed.
type Known struct {
	CAs []ServerCA
	// ServerName is the name that its certificate must have, and the SNI; empty means the host of
	// the address or another name of the API server.
	ServerName string
	// Host is the name by which the kubeconfig verifies it. It may be empty.
	Host string
}

// ProbeAddresses connects to each address and finds the first of the CAs that signed its
// certificate. It sends nothing.
func ProbeAddresses(ctx context.Context, candidates []Address, known *Known, now time.Time) {
	var group sync.WaitGroup
	for i := range candidates {
		group.Go(func() { candidates[i].probe(ctx, known, now) })
	}
	group.Wait()
}

func (c *Address) probe(ctx context.Context, known *Known, now time.Time) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		c.Err = errors.New("is no URL of the form https://HOST:PORT")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	chain, err := dial.ShownChain(ctx, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), known.ServerName)
	if err != nil {
		c.Err, c.Unreached = err, true
		return
	}
	for i := range known.CAs {
		if signs(&known.CAs[i], chain, now) {
			c.CA = &known.CAs[i]
			break
		}
	}
	if c.CA == nil {
		c.Err = fmt.Errorf("its certificate, of %q, is signed by none of: %s", chain[0].Issuer, caNames(known.CAs))
		return
	}
	host := cmp.Or(known.ServerName, u.Hostname())
	isFor := chain[0].VerifyHostname(host) == nil
	own := known.ownName(c.CA, chain[0])
	switch {
	case !isFor && known.ServerName != "", !isFor && own == "" && c.Chosen:
		c.Err = fmt.Errorf("its certificate is not for %s", host)
	case own == "" && !c.Chosen:
		c.Err = fmt.Errorf("it does not prove that it is the API server: its certificate, of %s, is for no name of it", c.CA.Name)
	case !isFor:
		c.TLSServerName = own
	}
}

// ownName returns a name of the certificate that only the API server has, or "". CAs of the system
// sign any name that somebody owns, and perhaps names that nobody owns.
func (k *Known) ownName(ca *ServerCA, cert *x509.Certificate) string {
	names := []string{k.ServerName}
	if !ca.system() { // the names that every API server has for pods
		names = append(names, "kubernetes.default.svc", "kubernetes.default", "kubernetes")
	}
	if !remotesecret.IsLoopback("https://" + net.JoinHostPort(k.Host, "443")) { // the certificate of each kubelet may have it
		names = append(names, k.Host)
	}
	for _, name := range names {
		if name != "" && cert.VerifyHostname(name) == nil {
			return name
		}
	}
	return ""
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
	slices.SortStableFunc(candidates, func(a, b Address) int { return badness(a) - badness(b) })
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
