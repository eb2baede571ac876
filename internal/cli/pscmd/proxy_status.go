// Package pscmd holds the command proxy-status, which shows the proxies that control planes serve.
package pscmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
)

// Options holds the flags of proxy-status, of which explain has some.
type Options struct {
	cli.PageFlags
	xds       xdsFlags
	verbosity int
	namespace string
	Cluster   string
	watch     bool
	fail      bool
	stale     time.Duration
	every     time.Duration // interval of --watch

	proxy        string // to compare; empty for the table of all
	envoy        pccmd.EnvoyFlags
	proxyContext string
	adminPort    uint16
}

// NewProxyStatus returns the command proxy-status.
func NewProxyStatus(env *cli.Env) *cobra.Command {
	o := Options{every: time.Second}
	cmd := &cobra.Command{
		Use:     "proxy-status [WORKLOAD]",
		Aliases: []string{"ps"},
		Short:   "Show whether proxies have their configuration",
		Long: `Show the state of the proxies of a control plane, over all its replicas: the types
that each proxy subscribed to, and whether it accepted the last response of each.

  SYNCED     the proxy accepted the last response
  STALE      it has not answered the last response
  ERROR      it rejected a response, or lacks a resource that it rejected
  NOT SENT   the resource does not exist

While a proxy moves to another replica, it may have a row for each of the two replicas.
The streams of an Envoy and of its agent share a row; -o json and yaml show each stream.

The command finds replicas in the cluster of the kubeconfig, by their Leases or as pods,
and asks them through its API server. --server sets addresses instead; without a
kubeconfig the address is 127.0.0.1:8080. The user that runs a replica needs no token on
the same machine; all other callers need --token-file.

With --xds-address the command asks over xDS, as istioctl does. The control planes may
be Istio's, and may run on other machines. The caller authenticates with the certificate
of --cert-dir, the token of --token-file, or a token that the cluster of the kubeconfig
creates for the service account default of --istioNamespace.

With WORKLOAD, the command compares the configuration of the proxy's
Envoy with the last clusters, listeners and routes from the control plane. If they
differ, it shows a unified diff and exits with code 3. It reads the Envoy in its pod,
through the API server, or at --admin or --file. If several clusters have a proxy of
that name, use --cluster.

` + cli.WorkloadHelp + `
Without WORKLOAD, it selects the proxies of the table.`,
		Example: `  meshctl proxy-status
  # Show a column for each type, of two replicas
  meshctl ps -v 1 --server 127.0.0.1:8080,127.0.0.1:18080
  # Ask the control plane in another cluster
  meshctl ps --context kind-cluster1
  # Ask over xDS
  meshctl ps --xds-address istiod.example.com:15012 --authority istiod.istio-system.svc
  # Watch the proxies of a namespace
  meshctl ps -n apps -w
  # Exit with code 3 when a proxy refused something or does not answer
  meshctl ps --fail --stale-after 1m
  # Compare an Envoy with the configuration that it was sent
  meshctl ps web-1.apps
  meshctl ps deploy/web -n apps
  meshctl ps web-1.apps --admin 127.0.0.1:15000
  meshctl ps web-1.apps --cluster cluster2 --proxy-context kind-cluster2`,
		Args:              o.setProxy,
		ValidArgsFunction: cli.CompleteNames(env, cli.NamesFrom(o.find, o.proxies)),
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	o.Bind(env, cmd)
	f.Lookup("timeout").Usage += ", or of Envoy"
	o.xds.bind(f)
	f.IntVarP(&o.verbosity, "verbosity", "v", 0, "Verbosity, 1 shows a column for each `type`")
	f.StringVarP(&o.namespace, "namespace", "n", "", "Only proxies of this `namespace`, or the namespace of a workload whose name has none")
	f.StringVar(&o.Cluster, "cluster", "", "Only proxies of this `cluster`")
	f.BoolVarP(&o.watch, "watch", "w", false, "Show changes until interrupted")
	f.BoolVar(&o.fail, "fail", false, "Exit with code 3 when a proxy refused something or has not answered for --stale-after")
	cli.DurationVar(f, &o.stale, "stale-after", 30*time.Second, "Time that --fail gives a proxy to answer")
	cli.CompleteFlag(env, cmd, "namespace", cli.NamesFrom(o.find, namespaces))
	o.envoy.Bind(f)
	o.Kube.ContextVar(env, cmd, &o.proxyContext, "proxy-context", "Kubeconfig `context` of the cluster of the pod (default the value of --context)")
	f.Uint16Var(&o.adminPort, "proxy-admin-port", mesh.PortEnvoyAdmin, "`Port` of Envoy's admin interface in the pod")
	return cmd
}

// setProxy takes the proxy from the arguments and refuses flags without effect.
func (o *Options) setProxy(cmd *cobra.Command, args []string) error {
	var err error
	if o.proxy, err = cli.MaybeWorkload(args); err != nil {
		return fmt.Errorf("%w, or none for all", err)
	}
	for _, name := range []string{"admin", "file", "proxy-context", "proxy-admin-port"} {
		if o.proxy == "" && cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s is for one workload: name it as %s", name, kube.WorkloadForms)
		}
	}
	for _, name := range xdsFlagNames() {
		if len(o.xds.addresses) == 0 && cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s needs --xds-address", name)
		}
	}
	return nil
}

// find returns the control planes to ask. The caller closes them.
func (o *Options) find(ctx context.Context, env *cli.Env) ([]*replicas.Replica, error) {
	if len(o.xds.addresses) > 0 {
		return o.xds.find(ctx, env, &o.ReplicaFlags)
	}
	return o.Find(ctx, env)
}

// proxies returns the names of the selected proxies.
func (o *Options) proxies(ctx context.Context, found []*replicas.Replica) ([]string, error) {
	return cli.ProxyNames(o.Selected(cli.AskProxies(ctx, found))), nil
}

// namespaces returns the namespaces of the connected proxies.
func namespaces(ctx context.Context, found []*replicas.Replica) ([]string, error) {
	var names []string
	for _, r := range cli.AskProxies(ctx, found) {
		for i := range r.Proxies {
			names = append(names, r.Proxies[i].Namespace)
		}
	}
	return names, nil
}

func (o *Options) run(ctx context.Context, env *cli.Env) error {
	if o.proxy != "" {
		return o.compare(ctx, env)
	}
	if o.verbosity < 0 || o.verbosity > 1 {
		return cli.Usagef("--verbosity %d: want 0 or 1", o.verbosity)
	}
	if o.watch {
		if o.fail {
			return cli.Usagef("--fail asks once, --watch goes on: give one of them")
		}
		return o.follow(ctx, env)
	}
	found, err := o.find(ctx, env)
	if errors.Is(err, replicas.ErrNone) {
		o.noteOrphans(env, o.orphans(ctx, env, nil))
	}
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	var orphans []string
	var asked sync.WaitGroup
	asked.Go(func() { orphans = o.orphans(ctx, env, found) })
	all := cli.AskProxies(ctx, found)
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return err // not the errors of replicas
	}
	reports := o.Selected(all)
	if err := o.show(env, reports); err != nil {
		return err
	}
	if o.Output.OfTable() && !slices.ContainsFunc(reports, func(r proxystatus.Report) bool { return r.Error != "" || len(r.Proxies) > 0 }) {
		env.Notef("%s", o.none(all))
	}
	o.noteOrphans(env, orphans)
	return o.judge(env, reports)
}

// selects reports whether the flags select a proxy.
func (o *Options) selects(p *proxystatus.Proxy) bool {
	return (o.namespace == "" || p.Namespace == o.namespace) && (o.Cluster == "" || p.Cluster == o.Cluster)
}

// Selected returns the reports with the selected proxies.
func (o *Options) Selected(all []proxystatus.Report) []proxystatus.Report {
	out := slices.Clone(all)
	for i := range out {
		out[i].Proxies = slices.Clone(out[i].Proxies)
		out[i].Keep(o.selects)
	}
	return out
}

// none returns the message for no selected proxy, with the places of other proxies.
func (o *Options) none(all []proxystatus.Report) string {
	namespaces, clusters := map[string]bool{}, map[string]bool{}
	for i := range all {
		for j := range all[i].Proxies {
			p := &all[i].Proxies[j]
			namespaces[p.Namespace], clusters[cli.OrDash(p.Cluster)] = true, true
		}
	}
	var places []string
	if o.namespace != "" && len(namespaces) > 0 {
		places = append(places, "in namespaces "+firstFew(slices.Sorted(maps.Keys(namespaces))))
	}
	if o.Cluster != "" && len(clusters) > 0 {
		places = append(places, "in clusters "+firstFew(slices.Sorted(maps.Keys(clusters))))
	}
	text := "No proxy" + o.where() + " is connected: looked at " + cli.LookedAt(all)
	if len(places) > 0 {
		text += ", " + strings.Join(places, ", ")
	}
	return text
}

// where returns the selected namespace and cluster.
func (o *Options) where() string {
	text := ""
	if o.namespace != "" {
		text += " in namespace " + o.namespace
	}
	if o.Cluster != "" {
		text += " in cluster " + o.Cluster
	}
	return text
}

// firstFew lists at most ten names.
func firstFew(names []string) string {
	if more := len(names) - 10; more > 0 {
		return strings.Join(names[:10], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

// judge returns the error for silent replicas, and with --fail for problems.
func (o *Options) judge(env *cli.Env, reports []proxystatus.Report) error {
	var wrong []string
	for i := range reports {
		if o.fail && reports[i].Err == nil {
			wrong = append(wrong, reports[i].Wrong(o.stale)...)
		}
	}
	return env.Conclude(wrong, o.SilentReports(reports))
}

// answered reports whether any replica answered.
func answered(reports []proxystatus.Report) bool {
	return slices.ContainsFunc(reports, func(r proxystatus.Report) bool { return r.Error == "" })
}

// table returns the table for --output and --verbosity.
func (o *Options) table(reports []proxystatus.Report) *output.Table {
	switch {
	case o.Output.Wide():
		return proxystatus.WideTable(reports)
	case o.verbosity > 0:
		return proxystatus.TypesTable(reports)
	}
	return proxystatus.Table(reports)
}

func (o *Options) show(env *cli.Env, reports []proxystatus.Report) error {
	if !o.Output.OfTable() {
		return output.Write(env.Stdout, o.Output, reports)
	}
	if !answered(reports) {
		return nil // judge returns the error
	}
	if err := cli.WriteTable(env, o.Output, o.table(proxystatus.Join(reports))); err != nil {
		return err
	}
	var hints []string
	for i := range reports {
		hints = append(hints, reports[i].Hints...)
	}
	env.Hints(o.Runnable(hints))
	return nil
}

// follow shows changes: on a terminal it redraws one view, otherwise it prints changed
// rows, or in JSON and YAML everything again.
func (o *Options) follow(ctx context.Context, env *cli.Env) error {
	show := o.appender(env)
	if size := env.TerminalSize(); size != nil && o.Output.ForPeople() {
		screen := output.NewScreen(env.Stdout, size)
		show = func(reports []proxystatus.Report) error { return screen.Show(o.view(env, reports)) }
	}
	first := true
	find := func() ([]*replicas.Replica, error) { return o.find(ctx, env) }
	err := cli.Poll(ctx, o.every, find, func(found []*replicas.Replica) (lost bool, err error) {
		reports := o.Selected(cli.AskProxies(ctx, found))
		if ctx.Err() != nil {
			return false, nil
		}
		if first && !answered(reports) {
			return false, o.judge(env, reports) // probably a wrong address
		}
		first = false
		lost = slices.ContainsFunc(reports, func(r proxystatus.Report) bool { return r.Error != "" })
		return lost, show(reports)
	})
	if ctx.Err() != nil {
		return nil // the normal end of --watch
	}
	return err
}

// view returns the text of the screen.
func (o *Options) view(env *cli.Env, reports []proxystatus.Report) string {
	var text bytes.Buffer
	proxies, wrong := 0, 0
	for i := range reports {
		proxies += len(reports[i].Proxies)
		wrong += len(reports[i].Wrong(o.stale))
	}
	fmt.Fprintf(&text, "%s UTC: %s, %s\n", env.Now().UTC().Format(time.TimeOnly), output.Plural(proxies, "stream"), output.Plural(wrong, "problem"))
	for i := range reports {
		if reports[i].Error != "" {
			fmt.Fprintln(&text, output.Escape(reports[i].Replica+": "+reports[i].Error))
		}
	}
	_ = o.table(proxystatus.Join(reports)).Write(&text) // cannot fail
	return text.String()
}

// appender returns a function that prints everything first, and then changes.
func (o *Options) appender(env *cli.Env) func([]proxystatus.Report) error {
	var before []proxystatus.Report
	return func(reports []proxystatus.Report) error {
		if o.Output.OfTable() {
			reports = proxystatus.Join(reports)
		}
		changed := proxystatus.Changed(before, reports)
		first := before == nil
		before = reports
		switch {
		case len(changed) == 0 && !first:
			return nil
		case !o.Output.OfTable():
			if o.Output == output.FormatYAML {
				fmt.Fprintln(env.Stdout, "---")
			}
			return output.Write(env.Stdout, o.Output, reports)
		}
		for i := range changed {
			if changed[i].Error != "" {
				env.Notef("%s: %s", changed[i].Replica, changed[i].Error)
			}
		}
		table := o.table(changed)
		if len(table.Rows) == 0 && !first {
			return nil
		}
		table.NoHeader = !first && o.verbosity == 0 && o.Output != output.FormatWide
		return cli.WriteTable(env, o.Output, table)
	}
}
