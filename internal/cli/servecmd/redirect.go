package servecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/dns"
	"github.com/meshctl/meshctl/internal/agent/redirect"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

type redirectOptions struct {
	flags                                *pflag.FlagSet
	values                               map[string]*string
	print, undo, skip, check             bool
	redirectDNS, allDNS, drop            bool
	dryRun, cleanup, inNamespace, cniRun bool
	namespace                            string
	annotations, resolvConf              string
}

// newRedirect returns the command agent redirect.
func newRedirect(env *cli.Env) *cobra.Command {
	o := redirectOptions{values: map[string]*string{}}
	cmd := &cobra.Command{
		Use:   "redirect [istio-iptables]",
		Short: "Redirect connections and DNS queries of this network namespace to the proxy",
		Long: `Make the rules of nftables that lead the connections of a workload through its Envoy,
and its DNS queries to its agent. The rules are in one table, "meshctl" of family inet,
which a second run replaces as a whole. They apply to both IP versions. The command needs
the capability NET_ADMIN, but no other program.

It takes the flags of istio-iptables, also after the word istio-iptables, so that an init
container of Istio works with other command words. A value comes from the first of these
that sets it: the flag, the variable of the flag's name (ENVOY_PORT), the annotation of the
pod, the default, with which Istio calls istio-iptables.`,
		Example: `  # Redirect all connections, in the network namespace of a pod
  meshctl agent redirect

  # Redirect DNS queries, too, but no connections to a range and from a port
  meshctl agent redirect --redirect-dns -x 10.20.0.0/16 -d 15090,15021,15020,9100

  # Show the rules, which needs no rights
  meshctl agent redirect --print

  # Remove the rules
  meshctl agent redirect --undo`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"istio-iptables"},
		RunE:      func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	o.flags = f
	for _, setting := range redirect.Flags() {
		o.values[setting.Name] = f.StringP(setting.Name, setting.Short, "", describe(&setting))
	}
	f.BoolVar(&o.redirectDNS, "redirect-dns", false, "Redirect DNS queries to the name servers of resolv.conf to the agent (ISTIO_META_DNS_CAPTURE)")
	f.BoolVar(&o.allDNS, "capture-all-dns", false, "With --redirect-dns, redirect queries to every name server")
	f.BoolVar(&o.drop, "drop-invalid", false, "Drop packets that belong to no connection (INVALID_DROP)")
	f.BoolVar(&o.print, "print", false, "Print the rules as an input of nft, and change nothing")
	f.BoolVar(&o.undo, "undo", false, "Remove the rules")
	f.BoolVar(&o.skip, "skip-rule-apply", false, "Make no rules, such as when a CNI plugin made them")
	f.BoolVar(&o.check, "run-validation", false, "Check that connections are redirected; run it as the user of the proxy, before the proxy")
	f.StringVar(&o.annotations, "annotations", podAnnotationsFile, "`File` with the annotations of the pod, if it exists")
	f.StringVar(&o.resolvConf, "resolv-conf", "/etc/resolv.conf", "`File` with the name servers whose queries are redirected")
	cmd.MarkFlagsMutuallyExclusive("print", "undo", "run-validation")
	o.bindIstio(f)
	return cmd
}
