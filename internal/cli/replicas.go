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

// replicaFlags say which control planes a command asks.
type replicaFlags struct {
	servers []string
	kube    kubeFlags
	context string
	system  string
	token   debugToken
	named   bool // the replicas are at addresses, not those of a cluster
}

// advice returns what to do about those of all replicas that have not answered, by
// their errors.
func (f *replicaFlags) advice(silent []string, all int) string {
	switch {
	case slices.ContainsFunc(silent, func(text string) bool { return strings.Contains(text, refusedToken) }):
		return "; " + f.kube.needsToken(f.context, f.system)
	case f.named && len(silent) == all:
		return "; --server names the --http-addr of control planes, --context the cluster that they run in"
	}
	return ""
}

func (f *replicaFlags) bind(env *Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.servers, "server", nil,
		"Debug addresses of the replicas: `host:port` or http://host:port, repeatable (default: those that the cluster of the kubeconfig has; without a kubeconfig 127.0.0.1:8080)")
	fs.StringVar(&f.context, "context", "", "Kubeconfig `context` of the cluster whose replicas are asked (default the current one)")
	f.kube.bind(fs)
	f.token.bind(fs)
	fs.StringVarP(&f.system, "istioNamespace", "i", mesh.DefaultSystemNamespace, "Namespace of the replicas")
	f.kube.contextFlags(env, cmd, "context")
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
func (f *replicaFlags) silent(errs []error, all int) error {
	if len(errs) == 0 {
		return nil
	}
	e := &silentError{errs: errs}
	if answered := all - len(errs); answered > 0 || slices.ContainsFunc(errs, isElsewhere) || strings.Contains(e.Error(), refusedToken) {
		e.advice = f.advice([]string{e.Error()}, 1+answered)
	}
	return e
}

// isElsewhere reports whether an error may be that no control plane is at the address:
// a control plane that refuses an answer is there.
func isElsewhere(err error) bool {
	_, refused := errors.AsType[*replicas.AnswerError](err)
	return !refused || errors.Is(err, replicas.ErrNotFound)
}

// told is what one replica tells of one thing.
type told[T any] struct {
	Replica string `json:"replica"`
	Thing   T      `json:",embed"`
}

// askPages asks all replicas at once for a status page, by what follows /debug/ in
// its URL. Those that have nothing of the name in the query, as absent recognizes, are
// left out. The error is of those that did not answer; it may come with answers.
func askPages[T any](ctx context.Context, f *replicaFlags, found []*replicas.Replica, page string, query url.Values, absent func(*replicas.AnswerError) bool) ([]told[T], error) {
	pages, errs := make([]T, len(found)), make([]error, len(found))
	var asked sync.WaitGroup
	for i, r := range found {
		asked.Go(func() { errs[i] = r.Get(ctx, "/debug/"+page, query, &pages[i]) })
	}
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err // not what the answers are
	}
	var answers []told[T]
	var silent []error
	for i, r := range found {
		refusal, refused := errors.AsType[*replicas.AnswerError](errs[i])
		switch {
		case errs[i] == nil:
			answers = append(answers, told[T]{r.Name, pages[i]})
		case !refused || absent == nil || !absent(refusal):
			silent = append(silent, fmt.Errorf("%s: %w", r.Name, errs[i]))
		}
	}
	return answers, f.silent(silent, len(found))
}

// each returns the items of lists, each with its replica.
func each[T any](answers []told[[]T]) []told[T] {
	out := []told[T]{}
	for _, a := range answers {
		for _, item := range a.Thing {
			out = append(out, told[T]{a.Replica, item})
		}
	}
	return out
}

// replicaTable is a table whose first column is the replica, unless there is only one.
type replicaTable struct {
	output.Table
	several bool
}

func newReplicaTable(several bool, header ...string) *replicaTable {
	t := &replicaTable{several: several, Table: output.Table{Header: header, Gap: 3}}
	if several {
		t.Header = append([]string{"REPLICA"}, header...)
	}
	return t
}

func (t *replicaTable) add(replica string, cells ...string) {
	if t.several {
		cells = append([]string{replica}, cells...)
	}
	t.Rows = append(t.Rows, cells)
}

// thisMachine is the status address of a control plane beside its user.
const thisMachine = "127.0.0.1:8080"

// find returns the replicas: those that are named, else those of the cluster. A
// request to one takes timeout at most. Close each of them.
func (f *replicaFlags) find(ctx context.Context, env *Env, timeout time.Duration) ([]*replicas.Replica, error) {
	servers, tokens := f.servers, f.token.tokens(env)
	if !mesh.IsDNSLabel(f.system) {
		return nil, usagef("namespace %q is not a DNS label", f.system)
	}
	if len(servers) == 0 {
		access, err := kube.Load(f.kube.options(env, f.context))
		switch {
		case errors.Is(err, kube.ErrNoAccess) && f.kube.kubeconfig == "" && f.context == "":
			servers = []string{thisMachine}
		case err != nil:
			return nil, err
		default:
			found, err := replicas.Find(ctx, replicas.Options{Access: access.Config, Namespace: f.system, Tokens: tokens, Timeout: timeout, Now: env.Now})
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
			return nil, usagef("--server %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}

// xdsOptions are the flags of the commands that show status pages of each replica.
type xdsOptions struct {
	replicas replicaFlags
	timeout  time.Duration
	output   output.Format
}

func (o *xdsOptions) bind(env *Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	o.replicas.bind(env, cmd)
	tableVar(fs, &o.output)
	durationVar(fs, &o.timeout, "timeout", 30*time.Second, "Longest wait for the whole answer of a replica")
}

// show writes a result in the format that was asked for.
func (o *xdsOptions) show(env *Env, v any, table *output.Table, none string) error {
	if err := writeResult(env, o.output, v, table); err != nil {
		return err
	}
	if o.output.OfTable() && len(table.Rows) == 0 && none != "" {
		fmt.Fprintln(env.Stderr, none)
	}
	return nil
}

func closeReplicas(list []*replicas.Replica) {
	for _, r := range list {
		r.Close()
	}
}

// proxyNames are those of all proxies, sorted.
func proxyNames(reports []proxystatus.Report) []string {
	var names []string
	for _, r := range reports {
		for i := range r.Proxies {
			names = append(names, r.Proxies[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// askProxies asks all replicas at once for their connected proxies.
func askProxies(ctx context.Context, found []*replicas.Replica) []proxystatus.Report {
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

func namesOf(found []*replicas.Replica) string {
	var names []string
	for _, r := range found {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// silentReports returns the error of the replicas that did not report, nil without
// one, and what to do about it, which the error has at its end.
func (f *replicaFlags) silentReports(reports []proxystatus.Report) (err error, advice string) {
	var lines []string
	for i := range reports {
		if reports[i].Error != "" {
			lines = append(lines, reports[i].Replica+": "+reports[i].Error)
		}
	}
	advice = f.advice(lines, len(reports))
	if len(lines) > 0 {
		err = errors.New(output.EscapeLines(lines) + advice)
	}
	return err, advice
}
