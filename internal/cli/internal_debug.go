package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/output"
)

type internalDebugOptions struct {
	xdsOptions
	list bool
}

func newInternalDebugCmd(env *Env) *cobra.Command {
	var o internalDebugOptions
	cmd := &cobra.Command{
		Use:   "internal-debug [PAGE]",
		Short: "Print a status page of a control plane",
		Long: `Print a status page of a control plane, by the name that follows /debug/ in its
URL, with the query. The pages are told in docs/status.md.

The source is the control plane's debug address (--server), which answers the
user that runs it on its own machine, and others with --token-file; kubectl
port-forward leads there.`,
		Example: `  meshctl x internal-debug --list
  meshctl x internal-debug syncz
  meshctl x internal-debug 'config_dump?proxyID=web-1.apps' | jq .configs`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeNames(env, o.pages),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, args) },
	}
	f := cmd.Flags()
	o.output = output.FormatJSON
	f.StringVar(&o.server, "server", "http://127.0.0.1:8080", "Debug address of the control plane: `host:port` or http://host:port")
	o.token.bind(f)
	f.BoolVarP(&o.list, "list", "L", false, "Print the names of all pages")
	durationVar(f, &o.timeout, "timeout", 30*time.Second, "Longest wait for the whole answer of the control plane")
	return cmd
}

func (o *internalDebugOptions) run(ctx context.Context, env *Env, args []string) error {
	page := strings.Join(args, "")
	switch {
	case o.list == (page != ""):
		return usagef("name one page, or list all with --list")
	case o.list:
		page = "list"
	}
	name, query, _ := strings.Cut(page, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return usagef("%q: %w", page, err)
	}
	var answer json.RawMessage
	if err := o.debug(ctx, env, (&url.URL{Path: name}).EscapedPath(), values, &answer); err != nil {
		return fmt.Errorf("page %q: %w", page, err)
	}
	return o.show(env, jsontext.Value(answer), nil, "")
}
