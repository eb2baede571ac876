package debugcmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxystatus"
)

type versionOptions struct {
	cli.ReplicaFlags
	output output.Format
	remote bool
	short  bool
}

// NewVersion returns the command version.
func NewVersion(env *cli.Env) *cobra.Command {
	var o versionOptions
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of meshctl, control planes and proxies",
		Long: `Print version, commit, Go version and platform of this binary. With --remote, or
a flag that names control planes, also print the versions of the control planes and of
their connected proxies; the command finds the control planes as meshctl proxy-status does.`,
		Example: `  meshctl version
  meshctl version -o json
  meshctl version --remote --context kind-cluster1`,
		Args: func(cmd *cobra.Command, args []string) error {
			var stray error
			cmd.Flags().Visit(func(f *pflag.Flag) {
				switch {
				case f.Name == "output" || f.Name == "remote" || f.Name == "short" || cmd.InheritedFlags().Lookup(f.Name) != nil:
				case cmd.Flags().Changed("remote") && !o.remote:
					stray = fmt.Errorf("--%s needs --remote", f.Name)
				default: // it says which control planes to ask
					o.remote = true
				}
			})
			return cmp.Or(cli.NoArgs(cmd, args), stray)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	cli.TextVar(f, &o.output)
	f.BoolVarP(&o.short, "short", "s", false, "Print only the version of this binary")
	f.BoolVar(&o.remote, "remote", false, "Print also the versions of control planes and of their proxies")
	o.Bind(env, cmd)
	return cmd
}

func (o *versionOptions) run(ctx context.Context, env *cli.Env) error {
	b := cli.CurrentBuild()
	if o.remote {
		return o.runRemote(ctx, env, b)
	}
	switch {
	case !o.output.OfTable():
		return output.Write(env.Stdout, o.output, b)
	case o.short:
		return env.WriteOut([]byte(b.Version + "\n"))
	}
	_, err := fmt.Fprintf(env.Stdout, "meshctl version %s\n", b)
	return err
}

// versions holds the versions of all programs.
type versions struct {
	Client        cli.Build      `json:"client"`
	ControlPlanes []planeVersion `json:"controlPlanes"`
	Proxies       []proxyVersion `json:"proxies"` // by version
}

type planeVersion struct {
	Replica string `json:"replica"`
	Error   string `json:"error,omitzero"` // set without a version
	*cli.Build
}

// proxyVersion counts the proxies of one version.
type proxyVersion struct {
	Version string `json:"version,omitzero"` // their ISTIO_VERSION
	Envoy   string `json:"envoy,omitzero"`
	Number  int    `json:"number"`
}

func (o *versionOptions) runRemote(ctx context.Context, env *cli.Env, own cli.Build) error {
	found, err := o.Find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	out := versions{Client: own, ControlPlanes: make([]planeVersion, len(found)), Proxies: []proxyVersion{}}
	var asked sync.WaitGroup
	for i, r := range found {
		asked.Go(func() {
			out.ControlPlanes[i] = planeVersion{Replica: r.Name, Build: new(cli.Build)}
			if err := r.Get(ctx, "/version", nil, out.ControlPlanes[i].Build); err != nil {
				out.ControlPlanes[i] = planeVersion{Replica: r.Name, Error: err.Error()}
			}
		})
	}
	reports := cli.AskProxies(ctx, found)
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	out.Proxies = countVersions(reports)
	if !o.output.OfTable() {
		err = output.Write(env.Stdout, o.output, out)
	} else {
		_, err = io.WriteString(env.Stdout, out.String())
	}
	if err != nil {
		return err
	}
	return o.SilentReports(reports)
}

// countVersions counts proxies, each once however many streams it has.
func countVersions(reports []proxystatus.Report) []proxyVersion {
	seen := map[string]proxyVersion{}
	for _, r := range proxystatus.Join(reports) {
		for i := range r.Proxies {
			p := &r.Proxies[i]
			seen[p.Cluster+"/"+p.Name] = proxyVersion{Version: p.Version, Envoy: p.Envoy}
		}
	}
	count := map[proxyVersion]int{}
	for _, v := range seen {
		count[v]++
	}
	out := []proxyVersion{}
	for v, n := range count {
		v.Number = n
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b proxyVersion) int {
		return cmp.Or(-cmp.Compare(a.Number, b.Number), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Envoy, b.Envoy))
	})
	return out
}

// String returns a line for each version, without control characters.
func (v *versions) String() string {
	var text strings.Builder
	line := func(format string, args ...any) { text.WriteString(output.Escape(fmt.Sprintf(format, args...)) + "\n") }
	line("meshctl version %s", v.Client)
	for _, p := range v.ControlPlanes {
		if p.Build != nil {
			line("control plane version %s: %s", p.Build, p.Replica)
		}
	}
	for _, p := range v.Proxies {
		line("proxy version %s, Envoy %s: %d", cmp.Or(p.Version, "unknown"), cmp.Or(p.Envoy, "unknown"), p.Number)
	}
	return text.String()
}
