package agent

import (
	"strings"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/dns"
)

// newNames returns the DNS server of the workload, nil for none.
func newNames(cfg *config.Config, opts Options) *dns.Server {
	if cfg.DNS == nil {
		return nil
	}
	return dns.New(dns.Config{
		Listen: cfg.DNS.Listen, ResolvConf: cfg.DNS.ResolvConf,
		Namespace: cfg.Node.Namespace, Domain: strings.TrimPrefix(cfg.Node.Domain, cfg.Node.Namespace+"."),
		Timeout: cfg.DNS.Timeout, Parallel: cfg.DNS.Parallel, ForwardEarly: cfg.DNS.ForwardEarly,
		Log: opts.Log, Now: opts.Now, Seed: opts.Rand.Uint64(),
	})
}
