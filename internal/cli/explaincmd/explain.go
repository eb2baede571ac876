// Package explaincmd holds the commands explain and render: what proxies get, and why.
package explaincmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/cli/pscmd"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/debug"
)

// NewExplain returns the command explain.
func NewExplain(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Explain the configuration of a proxy",
		Long: `Explain how a proxy reaches the endpoints of a service, and which security policies
apply to a workload. The command runs the code that generates the configuration.`,
		Example: `  meshctl explain endpoints helloworld.sample --from web-1.apps
  meshctl explain policies web-1.apps`,
	}
	cmd.AddCommand(newExplainEndpointsCmd(env), newExplainPoliciesCmd(env))
	return cmd
}

// explainOptions name the proxy to explain.
type explainOptions struct {
	cli.PageFlags
	proxy     string // WORKLOAD, then name.namespace
	namespace string
	cluster   string
}

func (o *explainOptions) bind(env *cli.Env, cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.cluster, "cluster", "", "The `cluster` of the proxy, if several clusters have one of that name")
	o.Bind(env, cmd)
	o.Kube.WorkloadNamespaceVar(env, cmd, &o.namespace)
}

// findProxy sets proxy to the name of the proxy of WORKLOAD.
func (o *explainOptions) findProxy(ctx context.Context, env *cli.Env, found []*replicas.Replica) (err error) {
	w := cli.WorkloadProxy{
		Named: o.proxy, Namespace: o.namespace, Kube: &o.Kube, Contexts: o.ContextsOf(found),
		Known: func() ([]string, error) {
			known := pscmd.Options{Cluster: o.cluster}
			return cli.ProxyNames(known.Selected(cli.AskProxies(ctx, found))), nil
		},
	}
	o.proxy, err = w.Find(ctx, env)
	return err
}

type explainEndpointsOptions struct {
	explainOptions
	service string
	port    uint32
}

func newExplainEndpointsCmd(env *cli.Env) *cobra.Command {
	var o explainEndpointsOptions
	cmd := &cobra.Command{
		Use:     "endpoints SERVICE --from WORKLOAD",
		Aliases: []string{"endpoint", "ep"},
		Short:   "Explain how a proxy reaches the endpoints of a service",
		Long: `List every endpoint of a service in every cluster and how the proxy reaches it:
directly, through gateways, or not at all and why. SERVICE is name.namespace, a full
host name, or the name of a service in the namespace of the proxy.

` + cli.WorkloadHelp + `
Its proxy must be connected to one of the control planes.

The explanation uses the newest state of the control plane. meshctl ps shows whether the
proxy has accepted the newest configuration. meshctl pc endpoints shows the endpoints
that its Envoy uses. The exit code is 3 when the proxy reaches no endpoint, or when one of
its routes leads to a subset without endpoints.`,
		Example: `  # Show why web calls only the pods of its own cluster
  meshctl explain endpoints helloworld.sample --from web-1.apps
  meshctl explain ep helloworld.sample --from deploy/web -n apps --port 5000 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return errors.New("want one service, as name.namespace, and with --from the workload that calls it")
			}
			o.service = args[0]
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	f.StringVar(&o.proxy, "from", "", "The `workload` that calls (required)")
	pccmd.PortVar(f, &o.port, "Only this `port` of the service")
	o.bind(env, cmd)
	cli.CompleteFlag(env, cmd, "from", cli.NamesFrom(o.Find, connected))
	return cmd
}

func (o *explainEndpointsOptions) run(ctx context.Context, env *cli.Env) error {
	if o.proxy == "" {
		return cli.Usagef("--from is required: the workload that calls, as %s", kube.WorkloadForms)
	}
	found, err := o.Find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	if err := o.findProxy(ctx, env, found); err != nil {
		return err
	}
	e, err := askExplanation[*debug.Explanation](ctx, &o.explainOptions, found, "/debug/explainz", url.Values{"service": {o.service}})
	if err != nil {
		return err
	}
	if o.port != 0 {
		e.Ports = slices.DeleteFunc(e.Ports, func(p debug.ExplainedPort) bool { return p.Port != o.port })
		if len(e.Ports) == 0 && e.Missing == "" {
			return fmt.Errorf("service %s has no port %d that proxies take", output.Escape(e.Service), o.port)
		}
	}
	if o.Output.OfTable() {
		err = writeExplanation(env, o.Output, e)
	} else {
		err = output.Write(env.Stdout, o.Output, e)
	}
	if err != nil {
		return err
	}
	return judgeExplanation(e)
}

// explanation is what control planes answer about a proxy.
type explanation interface {
	comparable
	Explained() *debug.ExplainedProxy
}

// askExplanation asks all control planes at the same time. Two of them may have proxies of that
// name in different clusters.
func askExplanation[E explanation](ctx context.Context, o *explainOptions, found []*replicas.Replica, page string, query url.Values) (none E, err error) {
	query.Set("proxyID", o.proxy)
	type result struct {
		list []E
		err  error
	}
	results := cli.ForEach(found, func(r *replicas.Replica) (out result) {
		out.list, out.err = askOneExplanation[E](ctx, r, page, query)
		return out
	})
	if err := ctx.Err(); err != nil {
		return none, err
	}
	var clusters []string
	var explained E
	var faults []error
	for _, x := range results {
		for _, e := range x.list {
			if id := string(e.Explained().Cluster); o.cluster == "" || id == o.cluster {
				clusters, explained = append(clusters, id), e
			}
		}
		if x.err != nil && !errors.Is(x.err, errNotHere) {
			faults = append(faults, x.err)
		}
	}
	if explained != none {
		return explained, pscmd.OneCluster(o.proxy, clusters)
	}
	advice := o.Advice(faults, len(found))
	if len(faults) < len(found) {
		faults = slices.Insert(faults, 0, o.absent(ctx, found))
	}
	return none, fmt.Errorf("%w%s", errors.Join(faults...), advice)
}

// errNotHere reports that the proxy is not connected to a control plane.
var errNotHere = errors.New("not connected here")

func askOneExplanation[E explanation](ctx context.Context, r *replicas.Replica, page string, query url.Values) ([]E, error) {
	var none E
	var list []E
	err := r.Get(ctx, page, query, &list)
	answer, ok := errors.AsType[*replicas.AnswerError](err)
	switch {
	case ok && answer.Text == debug.NotConnected:
		return nil, errNotHere
	case ok && answer.Text == debug.NoPage:
		return nil, fmt.Errorf("%s: it has no explanations: it is not meshctl, or an older version", r.Name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", r.Name, err)
	case len(list) == 0 || slices.ContainsFunc(list, func(e E) bool { return e == none || e.Explained().Proxy == "" }):
		return nil, fmt.Errorf("%s: its answer is no explanation: it is not meshctl", r.Name)
	}
	return list, nil
}

// absent returns the error for a proxy that is not connected, with similar names.
func (o *explainOptions) absent(ctx context.Context, found []*replicas.Replica) error {
	text := fmt.Sprintf("no proxy %q is connected", o.proxy)
	if o.cluster != "" {
		text += " in cluster " + o.cluster
	}
	reports := cli.AskProxies(ctx, found)
	near := cli.Near(o.proxy, cli.ProxyNames(reports))
	if text += near; near == "" {
		text += ": looked at " + cli.LookedAt(reports)
	}
	return errors.New(output.Escape(text))
}

// connected returns the names of the connected proxies.
func connected(ctx context.Context, found []*replicas.Replica) ([]string, error) {
	return cli.ProxyNames(cli.AskProxies(ctx, found)), nil
}

// writeExplanation prints the endpoints, and remarks to Stderr.
func writeExplanation(env *cli.Env, f output.Format, e *debug.Explanation) error {
	table := &output.Table{Header: []string{"PORT", "ENDPOINT", "POD", "CLUSTER", "NETWORK", "LOCALITY", "REACHED"}, Name: "ENDPOINT"}
	for _, p := range e.Ports {
		if len(p.Endpoints) == 0 {
			table.Rows = append(table.Rows, []string{strconv.FormatUint(uint64(p.Port), 10), "-", "-", "-", "-", "-", "no: " + noEndpoints})
		}
		for i := range p.Endpoints {
			x := &p.Endpoints[i]
			_, pod, _ := strings.Cut(x.Pod, "/")
			table.Rows = append(table.Rows, []string{
				strconv.FormatUint(uint64(p.Port), 10), x.Address, cmp.Or(pod, "-"), string(x.Cluster), cmp.Or(string(x.Network), "-"), cmp.Or(x.Locality, "-"), reached(e, x),
			})
		}
	}
	for _, x := range e.Omitted.First {
		table.Rows = append(table.Rows, []string{"-", x.Address.String(), "-", string(x.Cluster), "-", "-", "no: " + x.Reason})
	}
	if len(table.Rows) > 0 || !f.ForPeople() {
		if err := cli.WriteTable(env, f, table); err != nil {
			return err
		}
	}
	env.Notef("%s is in %s", e.Proxy, whereabouts(&e.ExplainedProxy))
	for _, r := range e.Lost {
		env.Notef("VirtualService %s sends requests to subset %s: they fail with status 503: %s", r.VirtualService, r.Subset, r.Why)
	}
	for _, c := range e.Conflicts {
		env.Notef("Calls to its address %s reach %s, which has the same address: call it by its name, over HTTP", c.Address, c.Used)
	}
	if more := e.Omitted.Number - len(e.Omitted.First); more > 0 {
		env.Notef("%d more endpoints are not listed", more)
	}
	if e.Network == "" && slices.ContainsFunc(e.Clusters, func(c debug.ExplainedCluster) bool { return c.Network != "" }) {
		env.Notef("The network of %s is not known: it sends neither ISTIO_META_NETWORK nor ISTIO_META_CLUSTER_ID of a cluster whose system namespace has the label %s", e.Proxy, mesh.LabelNetwork)
	}
	var without []string
	for _, c := range e.Clusters {
		if !c.Service {
			without = append(without, string(c.Cluster))
		}
	}
	if len(without) > 0 && len(without) < len(e.Clusters) {
		env.Notef("Without a service of that name and namespace: %s", strings.Join(without, ", "))
	}
	return nil
}

// whereabouts returns cluster and network of a proxy.
func whereabouts(e *debug.ExplainedProxy) string {
	text := "no known cluster"
	if e.Cluster != "" {
		text = "cluster " + string(e.Cluster)
	}
	if e.Network != "" {
		text += ", network " + string(e.Network)
	}
	return text
}

// noEndpoints is the reason for a port without endpoints.
const noEndpoints = "no cluster has endpoints for it: check the selector of the Service, its EndpointSlices and the names of their ports"

// reached returns how the proxy reaches an endpoint, or why it does not.
func reached(e *debug.Explanation, x *debug.ExplainedEndpoint) string {
	var notes []string
	if !x.Healthy {
		notes = append(notes, "not ready: sent as unhealthy")
	}
	if x.Demoted {
		notes = append(notes, "when others cannot")
	}
	how := "directly"
	if len(x.Gateways) == 0 && x.Network != e.Network && x.Network != "" {
		how += ": its network has no gateways"
	}
	switch {
	case x.Obstacle != "":
		return "no: " + x.Why
	case len(x.Gateways) > 0:
		how = "via " + strings.Join(x.Gateways, ", ")
	}
	for _, r := range e.Lost {
		notes = append(notes, "but not for requests to subset "+r.Subset)
	}
	if x.Passthrough != "" {
		notes = append(notes, "but not for calls from other networks: "+x.Passthrough.String())
	}
	return strings.Join(append([]string{how}, notes...), "; ")
}

// judgeExplanation returns a finding when the proxy reaches no endpoint, or when a route leads to none.
func judgeExplanation(e *debug.Explanation) error {
	if e.Missing != "" {
		return cli.Findingsf("%s", output.Escape(e.Proxy+" has no endpoints of "+e.Service+": "+e.Missing))
	}
	for _, p := range e.Ports {
		for i := range p.Endpoints {
			if p.Endpoints[i].Obstacle != "" {
				continue
			}
			if len(e.Lost) > 0 {
				return cli.Findingsf("%s", output.Escape(e.Proxy+" has routes to subsets of "+e.Service+" without endpoints"))
			}
			return nil
		}
	}
	return cli.Findingsf("%s", output.Escape(e.Proxy+" reaches no endpoint of "+e.Service))
}
