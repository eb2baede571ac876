package debugcmd

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/debug"
)

type internalDebugOptions struct {
	cli.PageFlags
	list, all bool
}

// NewInternalDebug returns the command internal-debug.
func NewInternalDebug(env *cli.Env) *cobra.Command {
	var o internalDebugOptions
	cmd := &cobra.Command{
		Use:   "internal-debug [PAGE]",
		Short: "Print a status page of control planes",
		Long: `Print a status page of control planes, by the name that follows /debug/ in its
URL, with the query. docs/status.md lists the pages.

The command asks all replicas in the cluster of the kubeconfig, as meshctl proxy-status
does, or the replicas at --server. A page about a proxy comes from the replica that
serves the proxy. If several replicas have the page, --all prints a list with the pages
of all replicas, and --server selects one replica. Profiles (pprof/heap) have the format
of go tool pprof.`,
		Example: `  meshctl x internal-debug --list
  meshctl x internal-debug syncz --all --context kind-cluster1
  meshctl x internal-debug 'config_dump?proxyID=web-1.apps' | jq .configs`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cli.CompleteNames(env, cli.NamesFrom(o.Find, o.pageNames)),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, args) },
	}
	o.ReplicaFlags.Bind(env, cmd)
	f := cmd.Flags()
	o.Output = output.FormatJSON
	f.BoolVarP(&o.list, "list", "L", false, "Print the names of all pages")
	f.BoolVar(&o.all, "all", false, "Print a list with the page of every replica")
	return cmd
}

func (o *internalDebugOptions) run(ctx context.Context, env *cli.Env, args []string) error {
	page := strings.Join(args, "")
	switch {
	case o.list == (page != ""):
		return cli.Usagef("name one page, or list all with --list")
	case o.list && o.all:
		return cli.Usagef("--list and --all: give one of them")
	}
	name, query, _ := strings.Cut(page, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return cli.Usagef("%q: %w", page, err)
	}
	found, err := o.Find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	if strings.HasPrefix(name, profilesPrefix) {
		if len(found) > 1 {
			return cli.Usagef("a profile is of one replica: --server names one of %s", output.Escape(cli.ReplicaNames(found)))
		}
		return found[0].Copy(ctx, env.Stdout, "/debug/"+name, values)
	}
	if o.list {
		names, err := o.pageNames(ctx, found)
		if len(names) == 0 {
			return err
		}
		return cmp.Or(output.Write(env.Stdout, o.Output, names), err)
	}
	pages, err := cli.AskPages[jsontext.Value](ctx, &o.ReplicaFlags, found, (&url.URL{Path: name}).EscapedPath(), values, isNotConnected)
	switch {
	case len(pages) == 0 && err == nil:
		return fmt.Errorf("page %q: the proxy is not connected to %s", page, output.Escape(cli.ReplicaNames(found)))
	case len(pages) == 0:
		return fmt.Errorf("page %q: %w", page, err)
	case o.all:
		return cmp.Or(output.Write(env.Stdout, o.Output, pagesOf(pages)), err)
	case len(pages) > 1:
		return cli.Usagef("%s have page %q: print all with --all, or choose one with --server", output.Escape(cli.ReplicaNames(found)), page)
	}
	return cmp.Or(output.Write(env.Stdout, o.Output, pages[0].Value), err)
}

// profilesPrefix begins the names of pages with runtime profiles, which are not JSON.
const profilesPrefix = "pprof/"

// isNotConnected recognizes the error of a replica that does not serve the proxy.
func isNotConnected(e *replicas.AnswerError) bool {
	return e.Code == http.StatusNotFound && e.Text == debug.NotConnected
}

// pageOf is a page of a replica, which may be any JSON value.
type pageOf struct {
	Replica string         `json:"replica"`
	Page    jsontext.Value `json:"page"`
}

func pagesOf(pages []cli.Answer[jsontext.Value]) []pageOf {
	var out []pageOf
	for _, p := range pages {
		out = append(out, pageOf{p.Replica, p.Value})
	}
	return out
}

// pageNames returns the names of the status pages of replicas.
func (o *internalDebugOptions) pageNames(ctx context.Context, found []*replicas.Replica) ([]string, error) {
	answers, err := cli.AskPages[[]string](ctx, &o.ReplicaFlags, found, "list", nil, nil)
	var names []string
	for _, a := range answers {
		names = append(names, a.Value...)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}
