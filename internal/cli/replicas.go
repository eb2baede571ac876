package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
)

// ReplicaFlags hold the flags that name the control planes to ask.
type ReplicaFlags struct {
	Servers  []string
	Kube     KubeFlags
	Contexts MeshContexts
	System   string
	Token    TokenFlag
	Timeout  time.Duration // of each request
	named    bool          // the replicas are given by address
	guessed  bool          // the address is that of a control plane on this machine
}

// Advice returns what to do about the errors of replicas that have not answered, of
// all replicas.
func (f *ReplicaFlags) Advice(silent []error, all int) string {
	switch {
	case slices.ContainsFunc(silent, isUnauthorized):
		return "; " + f.Kube.NeedsToken(f.Contexts.First(), f.System)
	case f.guessed && slices.ContainsFunc(silent, isElsewhere):
		return "; there is no kubeconfig, so this address was asked: name a kubeconfig with --kubeconfig, or control planes with --server"
	case f.named && len(silent) == all && slices.ContainsFunc(silent, isElsewhere):
		return "; --server takes the --http-addr of control planes, --context their cluster"
	}
	return ""
}

// Bind defines the flags.
func (f *ReplicaFlags) Bind(env *Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.Servers, "server", nil,
		"HTTP addresses of the replicas, as `host:port` or http://host:port; may be repeated (default the replicas in the cluster of the kubeconfig, without a kubeconfig 127.0.0.1:8080)")
	f.Contexts.Bind(env, cmd, &f.Kube, " of the replicas")
	f.Kube.Bind(fs)
	f.Token.Bind(fs)
	f.Kube.NamespaceVar(env, cmd, &f.System, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the replicas")
	DurationVar(fs, &f.Timeout, "timeout", 30*time.Second, "Longest wait for the answer of a replica")
}

// Runnable adds the flags that name the control planes to hints that end in a command,
// which control planes do not know.
func (f *ReplicaFlags) Runnable(hints []string) []string {
	var flags []string
	if len(f.Servers) > 0 {
		flags = append(flags, "--server", strings.Join(f.Servers, ","))
	}
	for _, given := range [][2]string{{"--kubeconfig", f.Kube.kubeconfig}, {"--context", strings.Join(f.Contexts.Names, ",")}, {"--token-file", f.Token.File}} {
		if given[1] != "" {
			flags = append(flags, given[0], given[1])
		}
	}
	if f.Contexts.All {
		flags = append(flags, "--all-clusters")
	}
	if f.System != mesh.DefaultSystemNamespace {
		flags = append(flags, "--istioNamespace", f.System)
	}
	for i, word := range flags {
		flags[i] = output.ShellWord(word)
	}
	suffix := strings.Join(append([]string{""}, flags...), " ")
	out := slices.Clone(hints)
	for i, hint := range out {
		if strings.Contains(hint, ": meshctl x internal-debug ") {
			out[i] += suffix
		}
	}
	return out
}

// silentError is the error of replicas that did not answer.
type silentError struct {
	text string
	errs []error
}

func (e *silentError) Error() string   { return e.text }
func (e *silentError) Unwrap() []error { return e.errs }

// Silent returns the error of the replicas that did not answer, of all replicas, with
// advice; nil without one. Each has a line and an error.
func (f *ReplicaFlags) Silent(lines []string, errs []error, all int) error {
	if len(errs) == 0 {
		return nil
	}
	return &silentError{output.EscapeLines(lines) + f.Advice(errs, all), errs}
}

// Unread returns the error of Silent for replicas whose state could not be read. If others answered,
// the command is incomplete, not a failure.
func (f *ReplicaFlags) Unread(lines []string, errs []error, all int) error {
	if len(errs) == 0 || len(errs) == all {
		return f.Silent(lines, errs, all)
	}
	unread := make([]error, len(lines))
	for i, line := range lines {
		unread[i] = errors.New(line)
	}
	unread[len(unread)-1] = fmt.Errorf("%w%s", unread[len(unread)-1], f.Advice(errs, all))
	return Incomplete(unread...)
}

func isUnauthorized(err error) bool { return errors.Is(err, replicas.ErrUnauthorized) }

// isElsewhere reports whether there may be no control plane at the address. One that
// refuses a request is there.
func isElsewhere(err error) bool {
	_, refused := errors.AsType[*replicas.AnswerError](err)
	return !refused || errors.Is(err, replicas.ErrNotFound)
}

// Answer is a value from one replica.
type Answer[T any] struct {
	Replica string `json:"replica"`
	Value   T      `json:",embed"`
}

// ForEach calls ask for all replicas at the same time and returns the results in their order.
func ForEach[T any](found []*replicas.Replica, ask func(*replicas.Replica) T) []T {
	out := make([]T, len(found))
	var asked sync.WaitGroup
	for i, r := range found {
		asked.Go(func() { out[i] = ask(r) })
	}
	asked.Wait()
	return out
}

// AskPages asks all replicas at the same time for the status page /debug/<page>. It
// leaves out the replicas whose error absent recognizes, because they do not have the
// object of the query. The error is about replicas that did not answer; it may come
// with answers of others.
func AskPages[T any](ctx context.Context, f *ReplicaFlags, found []*replicas.Replica, page string, query url.Values, absent func(*replicas.AnswerError) bool) ([]Answer[T], error) {
	type result struct {
		page T
		err  error
	}
	results := ForEach(found, func(r *replicas.Replica) (out result) {
		out.err = r.Get(ctx, "/debug/"+page, query, &out.page)
		return out
	})
	if err := ctx.Err(); err != nil {
		return nil, err // not the errors of replicas
	}
	var answers []Answer[T]
	errs := make([]error, len(found))
	for i, r := range found {
		if errs[i] = results[i].err; errs[i] == nil {
			answers = append(answers, Answer[T]{r.Name, results[i].page})
		}
	}
	return answers, f.unanswered(found, errs, absent)
}

// unanswered returns the error about the replicas that did not answer.
func (f *ReplicaFlags) unanswered(found []*replicas.Replica, errs []error, absent func(*replicas.AnswerError) bool) error {
	var lines []string
	var silent []error
	for i, err := range errs {
		refusal, refused := errors.AsType[*replicas.AnswerError](err)
		if err != nil && (!refused || absent == nil || !absent(refusal)) {
			lines, silent = append(lines, found[i].Name+": "+err.Error()), append(silent, err)
		}
	}
	return f.Unread(lines, silent, len(found))
}

// Ask finds the replicas, asks them for a status page as AskPages does, and reports
// whether there are several.
func Ask[T any](ctx context.Context, env *Env, f *PageFlags, page string) (answers []Answer[T], several bool, err error) {
	found, err := f.Find(ctx, env)
	if err != nil {
		return nil, false, err
	}
	defer CloseReplicas(found)
	answers, err = AskPages[T](ctx, &f.ReplicaFlags, found, page, nil, nil)
	return answers, len(found) > 1, err
}

// EachItem returns the items of all lists, each with its replica.
func EachItem[T any](answers []Answer[[]T]) []Answer[T] {
	out := []Answer[T]{}
	for _, a := range answers {
		for _, item := range a.Value {
			out = append(out, Answer[T]{a.Replica, item})
		}
	}
	return out
}

// ReplicaTable is a table whose first column is the replica if there are several.
type ReplicaTable struct {
	output.Table
	several bool
}

// NewReplicaTable returns a table for one or several replicas.
func NewReplicaTable(several bool, header ...string) *ReplicaTable {
	t := &ReplicaTable{several: several, Table: output.Table{Header: header, Gap: 3}}
	if several {
		t.Header = append([]string{"REPLICA"}, header...)
	}
	return t
}

// Add adds a row.
func (t *ReplicaTable) Add(replica string, cells ...string) {
	if t.several {
		cells = append([]string{replica}, cells...)
	}
	t.Rows = append(t.Rows, cells)
}

// thisMachine is the default address of a control plane on this machine.
const thisMachine = "127.0.0.1:8080"

// Find returns the replicas of --server, else the replicas of the clusters. The caller
// closes them.
func (f *ReplicaFlags) Find(ctx context.Context, env *Env) ([]*replicas.Replica, error) {
	if !mesh.IsDNSLabel(f.System) {
		return nil, Usagef("namespace %q is not a DNS label", f.System)
	}
	tokens := f.Token.Tokens(env)
	if len(f.Servers) > 0 {
		if f.Contexts.All {
			return nil, Usagef("--server names the replicas: leave out --all-clusters")
		}
		return f.at(f.Servers, tokens)
	}
	clusters, err := f.Contexts.Resolve(ctx, env, &f.Kube, f.System)
	if err != nil {
		return nil, err
	}
	if len(clusters) == 1 && clusters[0].Err == nil {
		found, err := f.in(ctx, env, clusters[0].Context, tokens)
		if f.Contexts.isMissing(&f.Kube, err) {
			f.guessed = true
			return f.at([]string{thisMachine}, tokens)
		}
		return found, err
	}
	lists := make([][]*replicas.Replica, len(clusters))
	var asked sync.WaitGroup
	for i := range clusters {
		asked.Go(func() { lists[i] = f.inOneOf(ctx, env, &clusters[i], tokens) })
	}
	asked.Wait()
	return slices.Concat(lists...), nil
}

// ContextsOf returns the contexts of the clusters in which replicas were found.
func (f *ReplicaFlags) ContextsOf(found []*replicas.Replica) []string {
	var out []string
	for _, r := range found {
		if r.Context != "" && !slices.Contains(out, r.Context) {
			out = append(out, r.Context)
		}
	}
	if len(out) == 0 {
		out = []string{f.Contexts.First()}
	}
	return out
}

// inOneOf returns the replicas in one of several clusters. If there are none, it returns one in their
// place that has the error.
func (f *ReplicaFlags) inOneOf(ctx context.Context, env *Env, c *MeshContext, tokens replicas.Tokens) []*replicas.Replica {
	found, err := []*replicas.Replica(nil), c.Err
	if err == nil {
		found, err = f.in(ctx, env, c.Context, tokens)
	}
	if err != nil {
		return []*replicas.Replica{{Name: c.Name(), Err: err}}
	}
	for _, r := range found {
		r.Name, r.Context = c.Context+"/"+r.Name, c.Context
	}
	return found
}

// in returns the replicas in the cluster of a context.
func (f *ReplicaFlags) in(ctx context.Context, env *Env, name string, tokens replicas.Tokens) ([]*replicas.Replica, error) {
	access, err := kube.Load(f.Kube.Options(env, name))
	if err != nil {
		return nil, err
	}
	found, err := replicas.Find(ctx, replicas.Options{Access: access.Config, Namespace: f.System, Tokens: tokens, Timeout: f.Timeout, Now: env.Now})
	if err != nil {
		return nil, fmt.Errorf("%w; --server takes the addresses of replicas", err)
	}
	return found, nil
}

// at returns the replicas at addresses.
func (f *ReplicaFlags) at(servers []string, tokens replicas.Tokens) ([]*replicas.Replica, error) {
	f.named = true
	var out []*replicas.Replica
	for _, s := range servers {
		r, err := replicas.At(s, tokens, f.Timeout)
		if err != nil {
			return nil, Usagef("--server %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}

// PageFlags hold the flags of a command that shows a status page of each replica.
type PageFlags struct {
	ReplicaFlags
	Output output.Format
}

// Bind defines the flags.
func (o *PageFlags) Bind(env *Env, cmd *cobra.Command) {
	o.ReplicaFlags.Bind(env, cmd)
	TableVar(cmd.Flags(), &o.Output)
}

// Show prints a result in the format of --output. When the table is empty it prints none
// to Stderr.
func (o *PageFlags) Show(env *Env, v any, table *output.Table, none string) error {
	if err := WriteResult(env, o.Output, v, table); err != nil {
		return err
	}
	if o.Output.OfTable() && len(table.Rows) == 0 && none != "" {
		env.Notef("%s", none)
	}
	return nil
}

// Finder finds the replicas to ask. The caller closes them.
type Finder func(context.Context, *Env) ([]*replicas.Replica, error)

// NamesFrom returns names that replicas know, for completion.
func NamesFrom(find Finder, ask func(context.Context, []*replicas.Replica) ([]string, error)) Names {
	return func(ctx context.Context, env *Env) ([]string, error) {
		found, err := find(ctx, env)
		if err != nil {
			return nil, err
		}
		defer CloseReplicas(found)
		return ask(ctx, found)
	}
}

// Poll asks replicas at once and then at an interval, until ctx ends. ask reports whether
// one is lost: then there may be new ones, and Poll finds them again.
func Poll(ctx context.Context, interval time.Duration, find func() ([]*replicas.Replica, error), ask func([]*replicas.Replica) (lost bool, err error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var found []*replicas.Replica
	defer func() { CloseReplicas(found) }()
	for {
		if found == nil {
			var err error
			if found, err = find(); err != nil {
				return err
			}
		}
		lost, err := ask(found)
		if err != nil {
			return err
		}
		if lost {
			CloseReplicas(found)
			found = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// CloseReplicas closes the connections to replicas.
func CloseReplicas(list []*replicas.Replica) {
	for _, r := range list {
		r.Close()
	}
}

// ProxyNames returns the sorted names of the proxies in reports.
func ProxyNames(reports []proxystatus.Report) []string {
	var names []string
	for _, r := range reports {
		for i := range r.Proxies {
			names = append(names, r.Proxies[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// AskProxies asks all replicas at the same time for their connected proxies.
func AskProxies(ctx context.Context, found []*replicas.Replica) []proxystatus.Report {
	return ForEach(found, func(r *replicas.Replica) proxystatus.Report { return askReplica(ctx, r) })
}

func askReplica(ctx context.Context, r *replicas.Replica) proxystatus.Report {
	var report proxystatus.Report
	if err := r.Get(ctx, "/debug/xds/proxies", nil, &report); err != nil {
		report = proxystatus.Report{Error: err.Error(), Err: err}
		if errors.Is(err, replicas.ErrNotFound) {
			report.Error = "this is no control plane of meshctl"
		}
	}
	if report.Replica = cmp.Or(report.Replica, r.Name); r.Context != "" {
		report.Replica = r.Name
	}
	if report.Proxies == nil {
		report.Proxies = []proxystatus.Proxy{}
	}
	report.Sort() // the replica may be another version
	return report
}

// ReplicaNames returns the names of replicas in one line.
func ReplicaNames(found []*replicas.Replica) string {
	var names []string
	for _, r := range found {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// LookedAt names the replicas that answered and the number of their proxies, for the line about no
// findings.
func LookedAt(reports []proxystatus.Report) string {
	var names []string
	proxies := map[string]bool{}
	for i := range reports {
		r := &reports[i]
		if r.Err == nil {
			names = append(names, r.Replica)
		}
		for j := range r.Proxies {
			proxies[r.Proxies[j].Cluster+"/"+r.Proxies[j].Name] = true
		}
	}
	text := "1 proxy"
	if len(proxies) != 1 {
		text = fmt.Sprintf("%d proxies", len(proxies))
	}
	return text + " of " + Named("control plane", names)
}

// AnsweredBy names the replicas of answers.
func AnsweredBy[T any](answers []Answer[T]) string {
	names := make([]string, len(answers))
	for i, a := range answers {
		names[i] = a.Replica
	}
	return Named("control plane", names)
}

// SilentReports returns the error of the replicas that did not report, nil for none.
func (f *ReplicaFlags) SilentReports(reports []proxystatus.Report) error {
	var lines []string
	var silent []error
	for i := range reports {
		if reports[i].Err != nil {
			lines, silent = append(lines, reports[i].Replica+": "+reports[i].Error), append(silent, reports[i].Err)
		}
	}
	return f.Unread(lines, silent, len(reports))
}
