package dns

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/meshctl/meshctl/internal/files"
)

const (
	maxResolvConf = 64 << 10 // bytes
	// maxServers is the number of name servers that resolvers use of a resolv.conf.
	maxServers = 3
	// lookInterval is the time between two looks at the resolv.conf.
	lookInterval = 2 * time.Second
)

// resolvConf is the content of a resolv.conf that matters here. It never changes.
type resolvConf struct {
	data    []byte
	servers []netip.AddrPort
	search  string // the first search domain, in lower case and without dots at its ends
}

// readResolvConf reads the first of the files that exists. The servers are without those in
// own, which would ask themselves.
func readResolvConf(paths []string, own []netip.AddrPort) (*resolvConf, error) {
	var data []byte
	var err error
	for _, path := range paths {
		if data, err = files.Read(path, maxResolvConf); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("name servers of this machine: %w", err)
	}
	parsed, err := dns.ClientConfigFromReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("name servers of this machine: %w", err)
	}
	c := &resolvConf{data: data}
	for _, text := range parsed.Servers {
		ip, err := netip.ParseAddr(text)
		server := netip.AddrPortFrom(ip, 53)
		if err == nil && len(c.servers) < maxServers && !slices.Contains(own, server) {
			c.servers = append(c.servers, server)
		}
	}
	if len(parsed.Search) > 0 {
		c.search = key(parsed.Search[0])
	}
	return c, nil
}

// NameServers returns the name servers in a resolv.conf.
func NameServers(path string) ([]netip.Addr, error) {
	c, err := readResolvConf([]string{path}, nil)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, s := range c.servers {
		out = append(out, s.Addr())
	}
	return out, nil
}

// follow keeps s.conf up to date until ctx ends. The last readable content stays in use.
func (s *Server) follow(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.look()
	}
}

// look takes over a changed resolv.conf.
func (s *Server) look() {
	c, err := readResolvConf(s.cfg.ResolvConf, s.cfg.Listen)
	if err != nil || bytes.Equal(c.data, s.conf.Load().data) {
		return
	}
	s.conf.Store(c)
	s.cfg.Log.Info("the name servers of this machine changed", "servers", c.servers, "search", c.search)
}
