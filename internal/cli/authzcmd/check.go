package authzcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type authzCheckOptions struct {
	pccmd.Options
	files    []string // all values of --file
	request  requestFlags
	workload policyWorkload
	verbose  bool
}

func newAuthzCheckCmd(env *cli.Env) *cobra.Command {
	var o authzCheckOptions
	cmd := &cobra.Command{
		Use:   "check [WORKLOAD]",
		Short: "Decide whether a proxy lets a request through, and why",
		Long: `Decide whether a proxy lets a request through, by the filters that its Envoy has: TLS,
AuthorizationPolicies, tokens and external authorizers. The answer names the policy and
the rule that decide or, if no rule allows the request, the rule that comes nearest.
Nothing is sent to the workload.

WORKLOAD names a pod, as in meshctl proxy-config. Without it, the source is a running Envoy
(--admin), a saved dump (--file), or policies: files and directories of YAML (--file, which
may be repeated). From policies, the command computes the configuration that serve would
send to a workload. --proxy names a workload in the same YAML. --namespace and --labels
describe a workload that is not in the YAML.

--principal is the identity of the client. Without it, the client sends plaintext. Without
other flags, the request is GET /. Some conditions depend on values that are not given,
such as the address of the client, or cannot be evaluated, such as CEL. The answer is
undecided if such a condition decides, or if Envoy asks an external authorizer. The exit
code is 0 if the request is allowed, and 3 if it is denied or undecided.`,
		Example: `  # May web call POST /orders of the shop?
  meshctl authz check shop-1.apps --principal apps/web --method POST --path /orders --port 8080

  # Check a request with a token against a saved dump, and show every rule
  meshctl authz check -f dump.json --port 8080 --claim sub=joe --claim scope="read write" -v

  # Check a request against policies that are not applied yet
  meshctl authz check -f policies.yaml -n apps --labels app=shop --principal apps/web --path /orders`,
	}
	fs := cmd.Flags()
	o.Bind(fs)
	file := fs.Lookup("file")
	file.Usage = "`File` with a saved dump, or with policies in YAML, which may be repeated; - for standard input"
	file.Value = &paths{Value: file.Value, all: &o.files}
	o.Pod.Bind(env, cmd)
	o.request.bind(fs)
	o.workload.bind(fs)
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "Show every rule, and why it matches or not")
	cli.TextVar(fs, &o.Output)
	cli.DurationVar(fs, &o.Source.Timeout, "timeout", 30*time.Second, "Longest wait for the answer of the admin interface")
	cmd.Args = o.args(cmd.Args)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) }
	return cmd
}

// paths is a flag that may be repeated. Its underlying flag has the first value.
type paths struct {
	pflag.Value
	all *[]string
}

func (p *paths) Set(path string) error {
	*p.all = append(*p.all, path)
	if len(*p.all) > 1 {
		return nil
	}
	return p.Value.Set(path)
}

// args accepts --namespace without a pod: it is also the namespace of a workload in YAML.
func (o *authzCheckOptions) args(ofPod cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if f := cmd.Flags().Lookup("namespace"); len(args) == 0 && f.Changed {
			f.Changed = false
			defer func() { f.Changed = true }()
		}
		return ofPod(cmd, args)
	}
}

func (o *authzCheckOptions) run(ctx context.Context, env *cli.Env) error {
	request, err := o.request.request()
	if err != nil {
		return err
	}
	config, err := o.config(ctx, env)
	if err != nil {
		return err
	}
	if request.Port == 0 {
		if request.Port, err = onlyPort(config); err != nil {
			return err
		}
	}
	result, err := access.Check(config, request)
	if err != nil {
		return fmt.Errorf("%w: it has %s", err, portList(config.Ports()))
	}
	if o.Output.OfTable() {
		err = o.write(env, result)
	} else {
		err = output.Write(env.Stdout, o.Output, result)
	}
	if err != nil || result.Verdict == access.Allowed {
		return err
	}
	return cli.Findingsf("the request is %s", result.Verdict)
}

// config reads the filters of the Envoy, or computes them from policies.
func (o *authzCheckOptions) config(ctx context.Context, env *cli.Env) (*access.Config, error) {
	if o.Pod.Named != "" { // overrides --file from the environment
		o.Source.File = ""
		if err := o.Pod.Find(ctx, env, &o.Source); err != nil {
			return nil, err
		}
	}
	if err := o.Check(env); err != nil {
		return nil, err
	}
	if err := o.Source.Validate(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	if o.Source.File != "" {
		input, isYAML, err := arePolicies(env, o.files)
		if err != nil {
			return nil, err
		}
		if isYAML {
			o.workload.namespace = o.Pod.Namespace
			return o.workload.config(ctx, input, o.files, &o.request)
		}
		o.Source.Stdin = input.Stdin
	}
	if o.workload.given() {
		return nil, cli.Usagef("--proxy and --labels are for policies: give --file with YAML")
	}
	var filters *proxyconfig.Filters
	err := o.Source.Read(ctx, fetch.Everything, func(r io.Reader) (err error) {
		filters, err = proxyconfig.ReadFilters(r)
		if m, ok := errors.AsType[*proxyconfig.MissingError](err); ok && o.Running() {
			err = fmt.Errorf("the answer has no %s: %w", m.What, pccmd.ErrNotEnvoy)
		}
		return err
	})
	return (*access.Config)(filters), err
}

// onlyPort returns the port of the workload if there is one.
func onlyPort(config *access.Config) (uint32, error) {
	ports := config.Ports()
	if len(ports) == 1 {
		return ports[0], nil
	}
	return 0, cli.Usagef("name a port with --port: the proxy has %s", portList(ports))
}

func portList(ports []uint32) string {
	if len(ports) == 0 {
		return "no ports of a service"
	}
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = strconv.FormatUint(uint64(p), 10)
	}
	return "the ports " + strings.Join(texts, ", ")
}

// write prints the decision and, if verbose, every rule.
func (o *authzCheckOptions) write(env *cli.Env, r *access.Result) error {
	decision := string(r.Verdict)
	if r.Status != 0 {
		decision += " with status " + strconv.Itoa(r.Status)
	}
	switch {
	case r.Rule != "":
		decision += " by " + access.RuleTitle(r.Rule)
	case r.By != "":
		decision += " by " + r.By
	}
	lines := []string{decision, "  because: " + r.Why, "  listener: " + r.Listener}
	if r.Chain != "" {
		lines = append(lines, "  filter chain: "+r.Chain)
	}
	tls := "none that the proxy terminates"
	if r.TLS {
		tls = "terminated by the proxy"
	}
	lines = append(lines, "  TLS: "+tls)
	if r.Path != "" {
		lines = append(lines, "  path after normalization: "+r.Path)
	}
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Shadow {
			lines = append(lines, "  shadow rules of "+s.Name+": "+shadowResult(s))
		}
	}
	if o.verbose {
		lines = append(lines, "")
	}
	if err := env.WriteOut([]byte(output.EscapeLines(lines) + "\n")); err != nil || !o.verbose {
		return err
	}
	return cli.WriteTable(env, output.FormatTable, ruleTable(r))
}

func shadowResult(s *access.Step) string {
	if s.Rule != "" {
		return string(s.Verdict) + " by " + access.RuleTitle(s.Rule)
	}
	return string(s.Verdict) + ", " + s.Why
}

// ruleTable lists all steps and their rules.
func ruleTable(r *access.Result) *output.Table {
	t := &output.Table{Header: []string{"STEP", "ACTION", "RULE", "MATCHES", "WHY"}, Name: "RULE"}
	for _, s := range r.Steps {
		action := cli.OrDash(s.Action)
		if s.Shadow {
			action += " (shadow)"
		}
		if len(s.Rules) == 0 {
			t.Rows = append(t.Rows, []string{s.Name, action, "-", string(s.Verdict), s.Why})
		}
		for _, rule := range s.Rules {
			t.Rows = append(t.Rows, []string{s.Name, action, shortRule(rule.Name), string(rule.Match), rule.Why})
		}
	}
	return t
}
