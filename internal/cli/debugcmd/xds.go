// Package debugcmd holds the commands about control planes: xds, log-level, version
// and experimental internal-debug.
package debugcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// NewXDS returns the command xds.
func NewXDS(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "xds",
		Short: "Show how configuration reaches the proxies",
		Long: `Show how configuration reaches the proxies of a running control plane: the cause of
each push, the time of each stage, and the answers of the proxies.

The command asks every replica in the cluster of the kubeconfig, as meshctl
proxy-status does, or at --server. With several replicas, the first column is the
replica.`,
		Example: `  # Show why and when a proxy got new configuration
  meshctl xds history web-1.apps

  # Watch the responses that proxies refuse
  meshctl xds nacks -w`,
	}
	cmd.AddCommand(newXDSHistoryCmd(env), newXDSNACKsCmd(env), newXDSTimelineCmd(env), newXDSViewsCmd(env))
	return cmd
}

// flightNotFound is the beginning of the error for an unknown proxy. Servers without the
// page return other errors.
const flightNotFound = "proxy "

// isOfNoProxy recognizes the error of a replica that does not know the proxy.
func isOfNoProxy(e *replicas.AnswerError) bool {
	return e.Code == http.StatusNotFound && strings.Contains(e.Text, flightNotFound)
}

type xdsHistoryOptions struct {
	cli.PageFlags
	proxy     string // WORKLOAD, then name.namespace
	namespace string
}

func newXDSHistoryCmd(env *cli.Env) *cobra.Command {
	var o xdsHistoryOptions
	cmd := &cobra.Command{
		Use:   "history WORKLOAD",
		Short: "Show the last responses to a proxy",
		Long: `Show the last responses to a proxy, oldest first. For each response, the command shows
the cause and these times:

  BATCH     from the event until the control plane begins to generate
  GENERATE  generating the response
  QUEUE     waiting to be sent
  SEND      writing to the connection
  ANSWERED  waiting for the answer of the proxy

` + cli.WorkloadHelp + `
It may also be a stream, as name.namespace-number.`,
		Example: `  meshctl xds history web-1.apps
  meshctl xds history web-1.apps -o json | jq '.[].pushes[] | select(.answer == "NACK")'`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			o.proxy, err = cli.OneWorkload(args)
			return err
		},
		ValidArgsFunction: cli.CompleteNames(env, cli.NamesFrom(o.Find, o.proxyNames)),
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.Bind(env, cmd)
	o.Kube.WorkloadNamespaceVar(env, cmd, &o.namespace)
	return cmd
}

func (o *xdsHistoryOptions) run(ctx context.Context, env *cli.Env) error {
	found, err := o.Find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	w := cli.WorkloadProxy{
		Named: o.proxy, Namespace: o.namespace, Kube: &o.Kube, Contexts: o.ContextsOf(found),
		Known: func() ([]string, error) { return o.proxyNames(ctx, found) },
	}
	if o.proxy, err = w.Find(ctx, env); err != nil {
		return err
	}
	answers, err := cli.AskPages[[]history.History](ctx, &o.ReplicaFlags, found, "xds/history", url.Values{"proxy": {o.proxy}}, isOfNoProxy)
	switch {
	case len(answers) == 0 && err != nil:
		return err
	case len(answers) == 0:
		return o.unknown(ctx, found)
	}
	histories := cli.EachItem(answers)
	table := cli.NewReplicaTable(len(found) > 1, "SENT", "STREAM", "TYPE", "WHY", "BATCH", "GENERATE", "QUEUE", "SEND", "ANSWERED", "ANSWER", "RESOURCES", "BYTES", "VERSION", "CAUSE")
	for _, h := range histories {
		for _, p := range h.Value.Pushes {
			change := cmp.Or(p.Change, &history.Publication{})
			table.Add(h.Replica,
				clock(p.Sent), h.Value.Stream, p.Type, p.Why, between(change.Arrived, change.Started), between(change.Started, change.Generated),
				between(p.Queued, p.Sent), between(p.Sent, p.Written), between(p.Sent, p.Answered), cli.OrDash(p.Answer),
				count(p.Resources, p.Removed), size(int64(p.Bytes)), p.Version, because(change, p.Error),
			)
		}
	}
	return cmp.Or(o.Show(env, histories, &table.Table, "No responses were sent to "+o.proxy+" by "+cli.AnsweredBy(answers)), err)
}

// unknown returns the error for a proxy that no replica knows, with similar names.
func (o *xdsHistoryOptions) unknown(ctx context.Context, found []*replicas.Replica) error {
	names, err := o.proxyNames(ctx, found)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("no proxy %q is or was connected to %s", o.proxy, cli.ReplicaNames(found))
	near := cli.Near(o.proxy, names)
	switch {
	case near != "":
		text += near
	case len(names) > 0:
		text += ", among " + output.Plural(len(names), "other") + "; a proxy is named name.namespace"
	default:
		text += ", nor any other; a proxy is named name.namespace"
	}
	return errors.New(output.Escape(text))
}

func newXDSTimelineCmd(env *cli.Env) *cobra.Command {
	var o cli.PageFlags
	cmd := &cobra.Command{
		Use:   "timeline",
		Short: "Show the last changes and how they reached the proxies",
		Long: `Show the last changes, oldest first: the cause, the number of events in the batch, the
time to collect the events (BATCH) and to generate the resources (GENERATE), the number
of responses, and the time from the first event to the last answer of a proxy (TOTAL).`,
		Example: `  meshctl xds timeline
  meshctl xds timeline -o json | jq '.[-1]'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return showTimeline(cmd.Context(), env, &o) },
	}
	o.Bind(env, cmd)
	return cmd
}

func showTimeline(ctx context.Context, env *cli.Env, o *cli.PageFlags) error {
	answers, several, err := cli.Ask[[]history.Publication](ctx, env, o, "xds/timeline")
	if len(answers) == 0 {
		return err
	}
	line := cli.EachItem(answers)
	slices.SortStableFunc(line, func(a, b cli.Answer[history.Publication]) int { return a.Value.Started.Compare(b.Value.Started) })
	table := cli.NewReplicaTable(several, "ARRIVED", "SNAPSHOT", "EVENTS", "BATCH", "GENERATE", "RESOURCES", "PUSHES", "ACK", "NACK", "BYTES", "TOTAL", "CAUSE")
	for i := range line {
		p := &line[i].Value
		table.Add(line[i].Replica,
			clock(p.Arrived), fmt.Sprint(p.Snapshot), fmt.Sprint(p.Events), between(p.Arrived, p.Started), between(p.Started, p.Generated),
			fmt.Sprint(p.Resources), fmt.Sprint(p.Pushes), fmt.Sprint(p.ACKs), fmt.Sprint(p.NACKs), size(p.Bytes),
			between(p.Arrived, p.LastAnswer), because(p, ""),
		)
	}
	return cmp.Or(o.Show(env, line, &table.Table, "Nothing was published yet by "+cli.AnsweredBy(answers)), err)
}

// clock returns the time of day in UTC.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("15:04:05.000")
}

// between returns the time between two events, "-" if one of them did not happen.
func between(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return "-"
	}
	d := to.Sub(from)
	unit := time.Second
	for unit > time.Microsecond && d < 10*unit {
		unit /= 10
	}
	return d.Round(unit).String()
}

// count returns the number of resources, and of removed ones if any.
func count(resources, removed int) string {
	if removed == 0 {
		return fmt.Sprint(resources)
	}
	return fmt.Sprintf("%d -%d", resources, removed)
}

// size formats a number of bytes.
func size(bytes int64) string {
	switch {
	case bytes < 10<<10:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 10<<20:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// because returns the cause of a push, or the reason why it was refused.
func because(p *history.Publication, refused string) string {
	if refused != "" {
		return refused
	}
	if len(p.Causes) == 0 {
		return "-"
	}
	c := p.Causes[0]
	text := c.Kind + " " + c.Name
	if c.Namespace != "" {
		text = c.Kind + " " + c.Namespace + "/" + c.Name
	}
	if c.Kind != string(snapshot.KindCluster) || c.Name != c.Cluster {
		text += " of " + c.Cluster
	}
	if c.Gone {
		text += ", removed"
	} else if c.Place != "" {
		text += ", " + c.Place
	}
	if p.Events > 1 {
		text += fmt.Sprintf(" and %d more", p.Events-1)
	}
	return text
}

// proxyNames returns the names of the proxies that are or were connected to
// replicas.
func (o *xdsHistoryOptions) proxyNames(ctx context.Context, found []*replicas.Replica) ([]string, error) {
	answers, err := cli.AskPages[[]history.Info](ctx, &o.ReplicaFlags, found, "xds/history", nil, nil)
	var names []string
	for _, s := range cli.EachItem(answers) {
		names = append(names, s.Value.Proxy)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}
