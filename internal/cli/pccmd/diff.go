package pccmd

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
		Short: "Compare the configuration of two Envoys",
		Long: `Compare the configuration of two Envoys, or of one Envoy before and after a change: the
clusters, listeners, routes and extensions from xDS, and with --type eds the endpoints.
The order of resources and the form of their JSON do not matter. The exit code is 3 when
they differ.

` + pairHelp + `

For each type the command prints a line with counts, then a unified diff of the
resources that differ and the names of resources that only one Envoy has. It also
reports expected differences, such as listeners on the pod's own address: select
resources with --name and --type, and use --ignore-own-addresses to ignore such
addresses.`,
		Example: `  # Compare two replicas of a workload
  meshctl pc diff web-1.apps web-2.apps --ignore-own-addresses

  # Show the effect of a change
  curl -s 127.0.0.1:15000/config_dump > before.json
  meshctl pc diff file:before.json http://127.0.0.1:15000

  # Compare the configuration of one service in two clusters
  meshctl pc diff deploy/web.apps deploy/web.apps --context kind-cluster1 \
    --context-b kind-cluster2 --name helloworld.sample --type cds,rds,eds`,
		Args: func(cmd *cobra.Command, args []string) error { return o.take(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringSliceVar(&o.types, "type", []string{"cds", "lds", "rds", "ecds"}, "`Type`s to compare: cds, lds, rds, ecds, eds, or all")
	cli.Suggest(fs, "type", strings.Fields(strings.ToLower(strings.Join(proxyconfig.DynamicTypes(), " "))+" all")...)
	fs.StringArrayVar(&o.names, "name", nil, "Only resources with this text in their `name`; * matches any text; may be repeated")
	fs.BoolVar(&o.alike, "ignore-own-addresses", false, "Ignore the own addresses of each Envoy, except in endpoints")
	fs.BoolVar(&o.namesOnly, "names-only", false, "Show only the names of resources that differ")
	return cmd
}

// envoyDiff is the result of a comparison.
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
		env.Notef("No name of %s matches --name %s (%s, %s)", strings.ToLower(strings.Join(selected.Types, ", ")), strings.Join(o.names, " --name "), both[0].Source, both[1].Source)
	}
	return nil
}

// selection returns the selection of the flags.
func (o *pcDiffOptions) selection() (proxyconfig.Selection, error) {
	known := proxyconfig.DynamicTypes()
	selected := proxyconfig.Selection{Names: o.names, Alike: o.alike}
	for _, typed := range o.types {
		name := strings.ToUpper(strings.TrimSpace(typed))
		switch {
		case name == "ALL":
			selected.Types = append(selected.Types, known...)
		case slices.Contains(known, name):
			selected.Types = append(selected.Types, name)
		default:
			return selected, cli.Usagef("--type %q is none of %s and all", typed, strings.ToLower(strings.Join(known, ", ")))
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
			WriteDifference(&text, a, b, t.Title, diff)
		}
	}
	_, err := io.WriteString(env.Stdout, text.String())
	return err
}

// countDifferences counts the differing resources of a type.
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

// InRedacted describes a difference that cannot be shown.
const InRedacted = "in what is redacted"

// WriteDifference writes a difference as text; a and b name the sides.
func WriteDifference(text *strings.Builder, a, b, what string, d proxyconfig.Difference) {
	name, notes := output.Escape(d.Name), ""
	if d.Redacted {
		notes = " (" + InRedacted + ")"
	}
	if d.NoteA != "" {
		notes += " (" + a + " " + output.Escape(d.NoteA) + ")"
	}
	if d.NoteB != "" {
		notes += " (" + b + " " + output.Escape(d.NoteB) + ")"
	}
	switch {
	case d.Only == proxyconfig.A:
		fmt.Fprintf(text, "Only in %s %s: %s%s\n", a, what, name, notes)
	case d.Only == proxyconfig.B:
		fmt.Fprintf(text, "Only in %s %s: %s%s\n", b, what, name, notes)
	case d.Diff == "":
		fmt.Fprintf(text, "Differs in %s: %s%s\n", what, name, notes)
	default:
		fmt.Fprintf(text, "--- %s %s: %s\n+++ %s %s: %s%s\n", a, what, name, b, what, name, notes)
		for line := range strings.Lines(d.Diff) {
			text.WriteString(output.Escape(strings.TrimSuffix(line, "\n")) + "\n")
		}
	}
}
