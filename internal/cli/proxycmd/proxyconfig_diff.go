package proxycmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcDiffOptions struct {
	pairOptions
	types     []string
	names     []string
	namesOnly bool
	alike     bool
}

func newPCDiffCmd(env *cli.Env) *cobra.Command {
	var o pcDiffOptions
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare what two Envoys are configured with",
		Long: `Compare what two Envoys are configured with, or one before and after a change: the
clusters, listeners, routes and extensions that came over xDS, and with --type eds
the endpoints. Order and spelling do not count. The exit code is 3 when they differ.

` + pairHelp + `

Each type has a line with counts; below it stand, as a unified diff, the resources
that differ and the names of those that one Envoy has alone. What differs by nature,
such as a listener on a pod's own address, is a difference, too: --name and --type
say what to compare, and --ignore-own-addresses takes those addresses for the same.`,
		Example: `  # why does one replica behave otherwise than the other?
  meshctl pc diff web-1.apps web-2.apps --ignore-own-addresses

  # what did a change do?
  curl -s 127.0.0.1:15000/config_dump > before.json
  meshctl pc diff file:before.json http://127.0.0.1:15000

  # of two clusters: what is known of one service
  meshctl pc diff deploy/web.apps deploy/web.apps --context kind-cluster1 \
    --context-b kind-cluster2 --name helloworld.sample --type cds,rds,eds`,
		Args: func(cmd *cobra.Command, args []string) error { return o.take(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringSliceVar(&o.types, "type", []string{"cds", "lds", "rds", "ecds"}, "`Types` to compare: cds, lds, rds, ecds, eds, or all")
	cli.Suggest(cmd.Flags(), "type", strings.Fields(strings.ToLower(strings.Join(proxyconfig.DynamicTypes(), " "))+" all")...)
	fs.StringArrayVar(&o.names, "name", nil, "Only resources with this in their `name`; * stands for any text. May be repeated")
	fs.BoolVar(&o.alike, "ignore-own-addresses", false, "Take the addresses of each Envoy itself for the same, but in endpoints")
	fs.BoolVar(&o.namesOnly, "names-only", false, "Do not show how resources differ")
	return cmd
}

// envoyDiff is what two Envoys are configured with differently.
type envoyDiff struct {
	A     *envoySide               `json:"a"`
	B     *envoySide               `json:"b"`
	Match bool                     `json:"match"`
	Types []proxyconfig.Comparison `json:"types"`
}

func (o *pcDiffOptions) run(ctx context.Context, env *cli.Env) error {
	selected, err := o.selection()
	if err != nil {
		return err
	}
	both, err := o.find(ctx, env)
	if err != nil {
		return err
	}
	request := fetch.Everything
	if slices.Contains(selected.Types, proxyconfig.EDS) {
		request = fetch.All
	}
	dumps, err := readBoth(ctx, both, request, func(r io.Reader) (*proxyconfig.Dynamic, error) {
		return proxyconfig.ReadDynamic(r, selected)
	})
	if err != nil {
		return err
	}
	result := envoyDiff{A: both[0], B: both[1], Match: true}
	dumps[0].From, dumps[1].From = both[0].Source, both[1].Source
	if result.Types, err = proxyconfig.Compare(ctx, dumps[0], dumps[1], selected.Types); err != nil {
		return err
	}
	var differ []string
	resources := 0
	for i := range result.Types {
		t := &result.Types[i]
		resources += t.Names
		if !t.Match {
			result.Match = false
			differ = append(differ, t.String())
		}
		for j := range t.Differences {
			if o.namesOnly {
				t.Differences[j].Diff = ""
			}
		}
	}
	if err := o.show(env, &result); err != nil {
		return err
	}
	switch {
	case !result.Match:
		return cli.Findingsf("%s", output.Escape(both[0].Name+" and "+both[1].Name+" differ: "+strings.Join(differ, "; ")))
	case resources == 0 && len(o.names) > 0:
		fmt.Fprintln(env.Stderr, "No names match.")
	}
	return nil
}

// selection is what the flags select.
func (o *pcDiffOptions) selection() (proxyconfig.Selection, error) {
	known := proxyconfig.DynamicTypes()
	selected := proxyconfig.Selection{Names: o.names, Alike: o.alike}
	for _, written := range o.types {
		name := strings.ToUpper(strings.TrimSpace(written))
		switch {
		case name == "ALL":
			selected.Types = append(selected.Types, known...)
		case slices.Contains(known, name):
			selected.Types = append(selected.Types, name)
		default:
			return selected, cli.Usagef("--type %q is none of %s and all", written, strings.ToLower(strings.Join(known, ", ")))
		}
	}
	if len(selected.Types) == 0 {
		return selected, cli.Usagef("--type is empty")
	}
	if slices.Contains(o.names, "") {
		return selected, cli.Usagef("--name is empty")
	}
	return selected, nil
}

func (o *pcDiffOptions) show(env *cli.Env, d *envoyDiff) error {
	if !o.output.OfTable() {
		return output.Write(env.Stdout, o.output, d)
	}
	a, b := output.Escape(d.A.Name), output.Escape(d.B.Name)
	var text strings.Builder
	for _, t := range d.Types {
		fmt.Fprintf(&text, "%s: %s\n", t.Title, countDifferences(t, a, b))
		for _, diff := range t.Differences {
			writeDifference(&text, a, b, t.Title, diff)
		}
	}
	_, err := io.WriteString(env.Stdout, text.String())
	return err
}

// countDifferences says how many resources of a type differ.
func countDifferences(t proxyconfig.Comparison, a, b string) string {
	if t.Match {
		return fmt.Sprintf("%d, no difference", t.A.Count)
	}
	onlyA, onlyB := t.Only(proxyconfig.A), t.Only(proxyconfig.B)
	var parts []string
	if n := len(t.Differences) - onlyA - onlyB; n > 0 {
		parts = append(parts, fmt.Sprintf("%d different", n))
	}
	if onlyA > 0 {
		parts = append(parts, fmt.Sprintf("%d only in %s", onlyA, a))
	}
	if onlyB > 0 {
		parts = append(parts, fmt.Sprintf("%d only in %s", onlyB, b))
	}
	return fmt.Sprintf("%d and %d, %s", t.A.Count, t.B.Count, strings.Join(parts, ", "))
}
