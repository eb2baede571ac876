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

// ReplicaFlags say which control planes a command asks.
type ReplicaFlags struct {
	Servers []string
	Kube    KubeFlags
	Context string
	System  string
	Token   TokenFlag
	named   bool // the replicas are at addresses, not those of a cluster
}

// Advice returns what to do about those of all replicas that have not answered, by
// their errors.
func (f *ReplicaFlags) Advice(silent []string, all int) string {
	switch {
	case slices.ContainsFunc(silent, func(text string) bool { return strings.Contains(text, refusedToken) }):
		return "; " + f.Kube.NeedsToken(f.Context, f.System)
	case f.named && len(silent) == all:
		return "; --server names the --http-addr of control planes, --context the cluster that they run in"
	}
	return ""
}

func (f *ReplicaFlags) Bind(env *Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.Servers, "server", nil,
		"Debug addresses of the replicas: `host:port` or http://host:port, repeatable (default: those that the cluster of the kubeconfig has; without a kubeconfig 127.0.0.1:8080)")
	fs.StringVar(&f.Context, "context", "", "Kubeconfig `context` of the cluster whose replicas are asked (default the current one)")
	f.Kube.Bind(fs)
	f.Token.Bind(fs)
	fs.StringVarP(&f.System, "istioNamespace", "i", mesh.DefaultSystemNamespace, "Namespace of the replicas")
	f.Kube.ContextFlags(env, cmd, "context")
}

// silentError is why replicas did not answer, and what to do about it.
type silentError struct {
	errs   []error
	advice string
}

func (e *silentError) Error() string {
	lines := make([]string, len(e.errs))
	for i, err := range e.errs {
		lines[i] = err.Error()
	}
	return output.EscapeLines(lines) + e.advice
}

func (e *silentError) Unwrap() []error { return e.errs }

// silent returns the error of the replicas that have not answered, nil without one.
func (f *ReplicaFlags) silent(errs []error, all int) error {
	if len(errs) == 0 {
		return nil
	}
	e := &silentError{errs: errs}
	if answered := all - len(errs); answered > 0 || slices.ContainsFunc(errs, isElsewhere) || strings.Contains(e.Error(), refusedToken) {
		e.advice = f.Advice([]string{e.Error()}, 1+answered)
	}
	return e
}

// isElsewhere reports whether an error may be that no control plane is at the address:
// a control plane that refuses an answer is there.
func isElsewhere(err error) bool {
	_, refused := errors.AsType[*replicas.AnswerError](err)
	return !refused || errors.Is(err, replicas.ErrNotFound)
}

// Answer is what one replica tells of one thing.
type Answer[T any] struct {
	Replica string `json:"replica"`
	Value   T      `json:",embed"`
}

// AskPages asks all replicas at once for a status page, by what follows /debug/ in
// its URL. Those that have nothing of the name in the query, as absent recognizes, are
// left out. The error is of those that did not answer; it may come with answers.
func AskPages[T any](ctx context.Context, f *ReplicaFlags, found []*replicas.Replica, page string, query url.Values, absent func(*replicas.AnswerError) bool) ([]Answer[T], error) {
	pages, errs := make([]T, len(found)), make([]error, len(found))
	var asked sync.WaitGroup
	for i, r := range found {
		asked.Go(func() { errs[i] = r.Get(ctx, "/debug/"+page, query, &pages[i]) })
	}
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err // not what the answers are
	}
	var answers []Answer[T]
	var silent []error
	for i, r := range found {
		refusal, refused := errors.AsType[*replicas.AnswerError](errs[i])
		switch {
		case errs[i] == nil:
			answers = append(answers, Answer[T]{r.Name, pages[i]})
		case !refused || absent == nil || !absent(refusal):
			silent = append(silent, fmt.Errorf("%s: %w", r.Name, errs[i]))
		}
	}
	return answers, f.silent(silent, len(found))
}

// EachItem returns the items of lists, each with its replica.
func EachItem[T any](answers []Answer[[]T]) []Answer[T] {
	out := []Answer[T]{}
	for _, a := range answers {
		for _, item := range a.Value {
			out = append(out, Answer[T]{a.Replica, item})
		}
	}
	return out
}

// replicaTable is a table whose first column is the replica, unless there is only one.
type replicaTable struct {
	output.Table
	several bool
}

func NewReplicaTable(several bool, header ...string) *replicaTable {
	t := &replicaTable{several: several, Table: output.Table{Header: header, Gap: 3}}
	if several {
		t.Header = append([]string{"REPLICA"}, header...)
	}
	return t
}

func (t *replicaTable) Add(replica string, cells ...string) {
	if t.several {
		cells = append([]string{replica}, cells...)
	}
	t.Rows = append(t.Rows, cells)
}

// thisMachine is the status address of a control plane beside its user.
const thisMachine = "127.0.0.1:8080"

// Find returns the replicas: those that are named, else those of the cluster. A
// request to one takes timeout at most. Close each of them.
func (f *ReplicaFlags) Find(ctx context.Context, env *Env, timeout time.Duration) ([]*replicas.Replica, error) {
	servers, tokens := f.Servers, f.Token.Tokens(env)
	if !mesh.IsDNSLabel(f.System) {
		return nil, Usagef("namespace %q is not a DNS label", f.System)
	}
	if len(servers) == 0 {
		access, err := kube.Load(f.Kube.Options(env, f.Context))
		switch {
		case errors.Is(err, kube.ErrNoAccess) && f.Kube.kubeconfig == "" && f.Context == "":
			servers = []string{thisMachine}
		case err != nil:
			return nil, err
		default:
			found, err := replicas.Find(ctx, replicas.Options{Access: access.Config, Namespace: f.System, Tokens: tokens, Timeout: timeout, Now: env.Now})
			if err != nil {
				return nil, fmt.Errorf("%w; --server names replicas by address", err)
			}
			return found, nil
		}
	}
	f.named = true
	var out []*replicas.Replica
	for _, s := range servers {
		r, err := replicas.At(s, tokens, timeout)
		if err != nil {
			return nil, Usagef("--server %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}

// PageFlags are the flags of the commands that show status pages of each replica.
type PageFlags struct {
	Replicas ReplicaFlags
	Timeout  time.Duration
	Output   output.Format
}

func (o *PageFlags) Bind(env *Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	o.Replicas.Bind(env, cmd)
	TableVar(fs, &o.Output)
	DurationVar(fs, &o.Timeout, "timeout", 30*time.Second, "Longest wait for the whole answer of a replica")
}

// Show writes a result in the format that was asked for.
func (o *PageFlags) Show(env *Env, v any, table *output.Table, none string) error {
	if err := WriteResult(env, o.Output, v, table); err != nil {
		return err
	}
	if o.Output.OfTable() && len(table.Rows) == 0 && none != "" {
		fmt.Fprintln(env.Stderr, none)
	}
	return nil
}

func CloseReplicas(list []*replicas.Replica) {
	for _, r := range list {
		r.Close()
	}
}

// ProxyNames are those of all proxies, sorted.
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

// AskProxies asks all replicas at once for their connected proxies.
func AskProxies(ctx context.Context, found []*replicas.Replica) []proxystatus.Report {
	reports := make([]proxystatus.Report, len(found))
	var wg sync.WaitGroup
	for i, r := range found {
		wg.Go(func() { reports[i] = askReplica(ctx, r) })
	}
	wg.Wait()
	return reports
}

func askReplica(ctx context.Context, r *replicas.Replica) proxystatus.Report {
	var report proxystatus.Report
	if err := r.Get(ctx, "/debug/xds/proxies", nil, &report); err != nil {
		report = proxystatus.Report{Error: err.Error()}
		if errors.Is(err, replicas.ErrNotFound) {
			report.Error = "it is no control plane of meshctl that tells this"
		}
	}
	report.Replica = cmp.Or(report.Replica, r.Name)
	if report.Proxies == nil {
		report.Proxies = []proxystatus.Proxy{}
	}
	report.Sort() // it is from elsewhere
	return report
}

func ReplicaNames(found []*replicas.Replica) string {
	var names []string
	for _, r := range found {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// SilentReports returns the error of the replicas that did not report, nil without
// one, and what to do about it, which the error has at its end.
func (f *ReplicaFlags) SilentReports(reports []proxystatus.Report) (err error, advice string) {
	var lines []string
	for i := range reports {
		if reports[i].Error != "" {
			lines = append(lines, reports[i].Replica+": "+reports[i].Error)
		}
	}
	advice = f.Advice(lines, len(reports))
	if len(lines) > 0 {
		err = errors.New(output.EscapeLines(lines) + advice)
	}
	return err, advice
}
