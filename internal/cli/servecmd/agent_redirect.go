package servecmd

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/dns"
	"github.com/meshctl/meshctl/internal/agent/redirect"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
)

type agentRedirectOptions struct {
	flags                   *pflag.FlagSet
	values                  map[string]*string // of redirect.Flags
	print, undo             bool
	dns, allDNS, drop       bool
	annotations, resolvConf string
}

func newAgentRedirect(env *cli.Env) *cobra.Command {
	o := agentRedirectOptions{values: map[string]*string{}}
	cmd := &cobra.Command{
		Use:   "redirect [istio-iptables]",
		Short: "Redirect the connections of a workload to its proxy",
		Long: `Create the nftables rules that redirect the connections of a workload to its Envoy, and
its DNS queries to its agent. The rules apply to this network namespace and to both IP
versions. They are in one table, "meshctl" of family inet, which a second run replaces
as a whole. The command needs the capability NET_ADMIN, and no other program.

The command accepts the flags and variables of istio-iptables, and istio-iptables as
first argument, so that Istio's init container works with it. A value comes from the
first of these that sets it: the flag, the variable with the name of the flag (such as
ENVOY_PORT), the annotation of the pod, the default. The defaults are the values with
which Istio's injector calls istio-iptables.`,
		Example: `  # Redirect all connections
  meshctl agent redirect

  # Redirect DNS queries, too, but no connections to a range and to a port of this pod
  meshctl agent redirect --redirect-dns -x 10.20.0.0/16 -d 15090,15021,15020,9100

  # Show the rules; this needs no permissions
  meshctl agent redirect --print

  # Remove the rules
  meshctl agent redirect --undo`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"istio-iptables"},
		RunE:      func(*cobra.Command, []string) error { return o.run(env) },
	}
	fs := cmd.Flags()
	o.flags = fs
	for _, f := range redirect.Flags() {
		usage := f.Usage
		if f.Annotation != "" {
			usage += " (" + f.Annotation + ")"
		}
		if f.Default != "" {
			usage += " (default " + f.Default + ")"
		}
		o.values[f.Name] = fs.StringP(f.Name, f.Short, "", usage)
	}
	fs.BoolVar(&o.dns, "redirect-dns", false, "Redirect DNS queries to the name servers of --resolv-conf to the agent (ISTIO_META_DNS_CAPTURE, REDIRECT_DNS)")
	fs.BoolVar(&o.allDNS, "capture-all-dns", false, "Redirect DNS queries to all name servers, with --redirect-dns (CAPTURE_ALL_DNS)")
	fs.BoolVar(&o.drop, "drop-invalid", false, "Drop packets that belong to no connection (INVALID_DROP, DROP_INVALID)")
	fs.BoolVar(&o.print, "print", false, "Print the rules as input for nft, and change nothing (DRY_RUN)")
	fs.BoolVar(&o.undo, "undo", false, "Remove the rules (CLEANUP_ONLY)")
	fs.StringVar(&o.annotations, "annotations", agentconfig.DefaultPodAnnotationsFile, "`File` with the annotations of the pod, if it exists")
	fs.StringVar(&o.resolvConf, "resolv-conf", "/etc/resolv.conf", "`File` with the name servers of the pod")
	cmd.MarkFlagsMutuallyExclusive("print", "undo")
	bindIstioRedirect(fs, &o)
	return cmd
}

// bindIstioRedirect defines the flags of istio-iptables that have another name here, no
// effect, or no implementation. They do not appear in the help.
func bindIstioRedirect(fs *pflag.FlagSet, o *agentRedirectOptions) {
	fs.BoolVarP(&o.print, "dry-run", "n", false, "Istio's name of --print")
	fs.BoolVar(&o.undo, "cleanup-only", false, "Istio's name of --undo")
	hidden := []string{"dry-run", "cleanup-only"}
	// The table of both IP versions is replaced as a whole, always.
	for _, name := range []string{"dual-stack", "force-apply", "native-nftables", "reconcile", "log_as_json"} {
		fs.Bool(name, false, "no effect here")
		hidden = append(hidden, name)
	}
	fs.String("log_output_level", "", "no effect here")
	for _, name := range unsupportedRedirect {
		fs.Bool(name, false, "not supported")
	}
	for _, name := range append(append(hidden, "log_output_level"), unsupportedRedirect...) {
		_ = fs.MarkHidden(name) // fails for an unknown flag only
	}
}

// unsupportedRedirect are flags of istio-iptables whose user relies on an effect.
var unsupportedRedirect = []string{"run-validation", "skip-rule-apply", "cni-mode", "iptables-trace-logging"}

// otherNamespace is the variable of istio-iptables with the network namespace of the rules.
const otherNamespace = "NETWORK_NAMESPACE"

// unusedRedirect holds the variables of istio-iptables with values that have no effect here, and
// why.
var unusedRedirect = []struct{ variable, fixed, reason string }{
	{"DRY_RUN_FILE_PATH", "", "--print writes the rules to the standard output"},
	{"FORCE_IPTABLES_BINARY", "", "the rules are made without iptables"},
	{"ISTIO_INBOUND_TPROXY_MARK", strconv.Itoa(mesh.MarkTransparent), "the mark is always the same"},
	{"ISTIO_INBOUND_TPROXY_ROUTE_TABLE", strconv.Itoa(redirect.RouteTable), "the route table is always the same"},
}

// variables applies the boolean variables of istio-iptables whose flags are not set, and reports
// those without effect.
func (o *agentRedirectOptions) variables(env *cli.Env) error {
	var errs []error
	for _, b := range []struct {
		value     *bool
		flags     []string
		variables []string
	}{
		{&o.print, []string{"print", "dry-run"}, []string{"DRY_RUN"}},
		{&o.undo, []string{"undo", "cleanup-only"}, []string{"CLEANUP_ONLY"}},
		{&o.dns, []string{"redirect-dns"}, []string{"REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"}},
		{&o.allDNS, []string{"capture-all-dns"}, []string{"CAPTURE_ALL_DNS"}},
		{&o.drop, []string{"drop-invalid"}, []string{"DROP_INVALID", "INVALID_DROP"}},
	} {
		for _, variable := range b.variables {
			given := isTrue(env, variable, &errs)
			*b.value = *b.value || given && !slices.ContainsFunc(b.flags, o.flags.Changed)
		}
	}
	for _, name := range unsupportedRedirect {
		if variable := redirect.VariableOf(name); o.flags.Changed(name) {
			errs = append(errs, fmt.Errorf("--%s is not supported", name))
		} else if isTrue(env, variable, &errs) {
			errs = append(errs, fmt.Errorf("%s (--%s) is not supported", variable, name))
		}
	}
	if namespace := env.Getenv(otherNamespace); namespace != "" {
		errs = append(errs, fmt.Errorf("%s=%q is not supported: run the command in this network namespace", otherNamespace, namespace))
	}
	if o.print && o.undo {
		errs = append(errs, errors.New("the rules are either printed (--print, DRY_RUN) or removed (--undo, CLEANUP_ONLY)"))
	}
	for _, u := range unusedRedirect {
		if value := env.Getenv(u.variable); value != "" && value != u.fixed {
			env.Warnf("%s has no effect here: %s", u.variable, u.reason)
		}
	}
	return errors.Join(errs...)
}

func (o *agentRedirectOptions) run(env *cli.Env) error {
	if err := o.variables(env); err != nil {
		return cli.Usagef("%w", err)
	}
	if o.undo {
		return redirect.Undo()
	}
	options, err := o.options(env)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	if o.print {
		_, err := io.WriteString(env.Stdout, options.Text())
		return err
	}
	return options.Apply()
}

// options returns what to redirect.
func (o *agentRedirectOptions) options(env *cli.Env) (*redirect.Options, error) {
	content, err := optionalFile(o.annotations)
	if err != nil {
		return nil, err
	}
	annotations, err := agentconfig.ParsePodFile(o.annotations, content)
	if err != nil {
		return nil, err
	}
	options, err := redirect.Resolve(func(f *redirect.Flag) (value, from string) {
		if o.flags.Changed(f.Name) {
			return *o.values[f.Name], "--" + f.Name
		}
		if v, ok := env.LookupEnv(f.Variable()); ok && v != "" {
			return v, f.Variable()
		}
		if v, ok := annotations[f.Annotation]; ok {
			return f.FromAnnotation(v), "annotation " + f.Annotation
		}
		return f.Default, "--" + f.Name
	})
	var errs []error
	if err != nil {
		errs = append(errs, err)
	}
	options.DropInvalid = o.drop
	if o.dns {
		options.DNS, options.AllDNS = mesh.PortAgentDNS, o.allDNS
		if !o.allDNS {
			if options.DNSServers, err = dns.NameServers(o.resolvConf); err == nil && len(options.DNSServers) == 0 {
				err = fmt.Errorf("%s names no name server, whose queries to redirect; redirect all of them with --capture-all-dns", o.resolvConf)
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return options, errors.Join(errs...)
}

// isTrue returns the value of a boolean variable. A wrong one is added to errs.
func isTrue(env *cli.Env, variable string, errs *[]error) bool {
	text := env.Getenv(variable)
	if text == "" {
		return false
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		*errs = append(*errs, fmt.Errorf("%s=%q is neither true nor false", variable, text))
	}
	return v
}
