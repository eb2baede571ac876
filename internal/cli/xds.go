package cli

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
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/nearest"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/flight"
)

func newXDSCmd(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "xds",
		Short: "Show how configuration reaches the proxies",
		Long: `Show how configuration reaches the proxies of a running control plane: what
caused each push, how long each stage took, what the proxies answered.

The source is the control plane's debug address (--server), which answers the
user that runs it on its own machine, and others with --token-file; kubectl
port-forward leads there.`,
		Example: `  # why did this proxy get new configuration, and when?
  meshctl xds history web-1.apps

  # what do proxies refuse?
  meshctl xds nacks -w`,
	}
	cmd.AddCommand(newXDSHistoryCmd(env), newXDSNACKsCmd(env), newXDSTimelineCmd(env), newXDSViewsCmd(env))
	return cmd
}

// xdsOptions are the flags that all xds commands have.
type xdsOptions struct {
	server  string
	token   debugToken
	timeout time.Duration
	output  output.Format
}

func (o *xdsOptions) bind(fs *pflag.FlagSet) {
	o.output = output.FormatTable
	fs.StringVar(&o.server, "server", "http://127.0.0.1:8080", "Debug address of the control plane: `host:port` or http://host:port")
	o.token.bind(fs)
	fs.VarP(&o.output, "output", "o", "Output `format`: table, json or yaml")
	durationVar(fs, &o.timeout, "timeout", 30*time.Second, "Longest wait for the whole answer of the control plane")
}

// errNoSuch is that the control plane has nothing of the name.
var errNoSuch = errors.New("not found")

// get reads a status page about xDS into v.
func (o *xdsOptions) get(ctx context.Context, env *Env, page string, query url.Values, v any) error {
	return o.debug(ctx, env, "xds/"+page, query, v)
}

// debug reads a status page into v.
func (o *xdsOptions) debug(ctx context.Context, env *Env, page string, query url.Values, v any) error {
	server, err := replicas.At(o.server, o.token.tokens(env), o.timeout)
	if err != nil {
		return usagef("--server %w", err)
	}
	defer server.Close()
	token, err := server.Token(ctx) // what is wrong with it is told as it is
	if err != nil {
		return err
	}
	server.Token = func(context.Context) (string, error) { return token, nil }
	err = server.Get(ctx, "/debug/"+page, query, v)
	answer, answered := errors.AsType[*replicas.AnswerError](err)
	switch {
	case err == nil:
		return nil
	case !answered:
		return fmt.Errorf("ask the control plane at %s: %w; --server names its --http-addr", server.URL, err)
	case answer.Code == http.StatusNotFound && strings.Contains(answer.Text, flightNotFound):
		return errNoSuch
	}
	err = fmt.Errorf("the control plane at %s answered %s", server.URL, output.Escape(fmt.Sprintf("%s: %.200s", answer.Status, answer.Text)))
	if answer.Code == http.StatusUnauthorized {
		return fmt.Errorf("%w; %s", err, needsToken)
	}
	return err
}

// flightNotFound begins the answer for a proxy that is not known, which other
// servers do not give for a page that they do not have.
const flightNotFound = "proxy "

// show writes a result in the format that was asked for.
func (o *xdsOptions) show(env *Env, v any, table *output.Table, none string) error {
	if o.output != output.FormatTable {
		return output.Write(env.Stdout, o.output, v)
	}
	if err := table.Write(env.Stdout); err != nil {
		return err
	}
	if len(table.Rows) == 0 && none != "" {
		fmt.Fprintln(env.Stderr, none)
	}
	return nil
}

type xdsHistoryOptions struct {
	xdsOptions
	proxy string
}

func newXDSHistoryCmd(env *Env) *cobra.Command {
	var o xdsHistoryOptions
	cmd := &cobra.Command{
		Use:   "history PROXY",
		Short: "Show the last responses that a proxy was sent",
		Long: `Show the last responses that a proxy was sent, oldest first: why, caused by
which object, how long it took from the event to the batch (BATCH), to generate
(GENERATE), until it was sent (QUEUE), to hand to the connection (SEND) and
until the proxy answered (ANSWERED).

PROXY is name.namespace, or one stream of it as name.namespace-number.`,
		Example: `  meshctl xds history web-1.apps
  meshctl xds history web-1.apps -o json | jq '.[].pushes[] | select(.answer == "NACK")'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return errors.New("want one proxy, as name.namespace")
			}
			o.proxy = args[0]
			return nil
		},
		ValidArgsFunction: completeNames(env, o.proxies),
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(cmd.Flags())
	return cmd
}

func (o *xdsHistoryOptions) run(ctx context.Context, env *Env) error {
	var histories []flight.History
	err := o.get(ctx, env, "history", url.Values{"proxy": {o.proxy}}, &histories)
	if errors.Is(err, errNoSuch) {
		return o.unknown(ctx, env)
	}
	if err != nil {
		return err
	}
	table := &output.Table{
		Header: []string{"SENT", "STREAM", "TYPE", "WHY", "BATCH", "GENERATE", "QUEUE", "SEND", "ANSWERED", "ANSWER", "RESOURCES", "BYTES", "VERSION", "CAUSE"},
		Gap:    3,
	}
	for _, h := range histories {
		for _, p := range h.Pushes {
			change := cmp.Or(p.Change, &flight.Publication{})
			table.Rows = append(table.Rows, []string{
				clock(p.Sent), h.Stream, p.Type, p.Why, between(change.Arrived, change.Started), between(change.Started, change.Generated),
				between(p.Queued, p.Sent), between(p.Sent, p.Written), between(p.Sent, p.Answered), orDash(p.Answer),
				count(p.Resources, p.Removed), size(int64(p.Bytes)), p.Version, because(change, p.Error),
			})
		}
	}
	return o.show(env, histories, table, "No responses sent.")
}

// unknown is the error for a proxy that is not known, with names near it.
func (o *xdsHistoryOptions) unknown(ctx context.Context, env *Env) error {
	names, err := o.proxies(ctx, env)
	if err != nil {
		return err
	}
	near := nearNames(o.proxy, names)
	if len(near) == 0 {
		others := "nor any other"
		if n := len(names); n > 0 {
			others = "among " + plural(n, "other")
		}
		return fmt.Errorf("no proxy %q is or was connected to %s, %s; a proxy is named name.namespace", o.proxy, o.server, others)
	}
	return fmt.Errorf("no proxy %q is or was connected to %s, near are: %s", o.proxy, o.server, output.Escape(strings.Join(near, ", ")))
}

// nearNames picks at most five names that may have been meant: those that
// contain what was written first, then those with few edits.
func nearNames(written string, names []string) []string {
	distance := func(name string) int {
		if strings.Contains(name, written) || strings.Contains(written, name) {
			return 0
		}
		return nearest.Distance(written, name)
	}
	near := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return distance(n) > max(3, len(written)/3) })
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	return near[:min(5, len(near))]
}

type xdsTimelineOptions struct{ xdsOptions }

func newXDSTimelineCmd(env *Env) *cobra.Command {
	var o xdsTimelineOptions
	cmd := &cobra.Command{
		Use:   "timeline",
		Short: "Show the last changes and how fast they reached the proxies",
		Long: `Show the last changes, oldest first: what caused them, how many events were
taken together, how long they were gathered (BATCH) and generated, how many
responses carried them, and the time from the first event to the last answer
of a proxy (TOTAL).`,
		Example: `  meshctl xds timeline
  meshctl xds timeline -o json | jq '.[-1]'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(cmd.Flags())
	return cmd
}

func (o *xdsTimelineOptions) run(ctx context.Context, env *Env) error {
	var line []flight.Publication
	if err := o.get(ctx, env, "timeline", nil, &line); err != nil {
		return err
	}
	table := &output.Table{
		Header: []string{"ARRIVED", "SNAPSHOT", "EVENTS", "BATCH", "GENERATE", "RESOURCES", "PUSHES", "ACK", "NACK", "BYTES", "TOTAL", "CAUSE"},
		Gap:    3,
	}
	for _, p := range line {
		table.Rows = append(table.Rows, []string{
			clock(p.Arrived), fmt.Sprint(p.Snapshot), fmt.Sprint(p.Events), between(p.Arrived, p.Started), between(p.Started, p.Generated),
			fmt.Sprint(p.Resources), fmt.Sprint(p.Pushes), fmt.Sprint(p.ACKs), fmt.Sprint(p.NACKs), size(p.Bytes),
			between(p.Arrived, p.LastAnswer), because(&p, ""),
		})
	}
	return o.show(env, line, table, "Nothing was published yet.")
}

// clock is the time of day in UTC.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("15:04:05.000")
}

// between is the time from one moment to another, "-" when either did not
// come.
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

func orDash(s string) string { return cmp.Or(s, "-") }

// count is a number of resources, with those that were removed.
func count(resources, removed int) string {
	if removed == 0 {
		return fmt.Sprint(resources)
	}
	return fmt.Sprintf("%d -%d", resources, removed)
}

// size is a number of bytes for people.
func size(bytes int64) string {
	switch {
	case bytes < 10<<10:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 10<<20:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// because is why a push was made, or why it was refused.
func because(p *flight.Publication, refused string) string {
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
