package certscmd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/inspect"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
)

type certsInspectOptions struct {
	readOptions
	roots  string
	output output.Format
}

func newCertsInspectCmd(env *cli.Env) *cobra.Command {
	o := &certsInspectOptions{}
	cmd := &cobra.Command{
		Use:   "inspect INPUT...",
		Short: "Show what certificates there are",
		Long: `Show the certificates, keys, certificate requests, revocation lists and tokens
that the inputs hold. Nothing is verified; with --roots it says whether the
chain that a TLS server shows leads to one of them.

` + inputHelp,
		Example: `  meshctl certs inspect certs/cluster1
  meshctl certs inspect 127.0.0.1:15012 --server-name istiod.istio-system.svc --roots certs/root-cert.pem

  # what a proxy was given
  curl -s 127.0.0.1:15000/config_dump | meshctl certs inspect -
  meshctl pc secrets --admin 127.0.0.1:15000 -o json | meshctl certs inspect -`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			o.inputs = args
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringVar(&o.roots, "roots", "", "`File` with the roots that the chain of host:port should lead to")
	cli.TableVar(fs, &o.output, formatText)
	return cmd
}

func (o *certsInspectOptions) run(ctx context.Context, env *cli.Env) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.roots != "" && !slices.ContainsFunc(o.inputs, inspect.IsHost) {
		return cli.Usagef("--roots is for the chain of host:port; check others with: meshctl certs verify FILE --roots FILE")
	}
	roots, err := readRoots(o.roots)
	if err != nil {
		return err
	}
	found, err := o.load(ctx, env)
	if err != nil {
		return err
	}
	entries := inspect.List(found, roots, env.Now())
	switch o.output {
	case formatText:
		err = inspect.WriteText(env.Stdout, entries)
	default:
		err = cli.WriteResult(env, o.output, entries, inspect.ItemTable(entries, o.output.Wide()))
		if o.output.OfTable() {
			sayChains(env, entries)
		}
	}
	if err != nil {
		return err
	}
	return unread(env, entries)
}

// sayChains tells whether the chains of servers lead to a root, which the
// table has no room for.
func sayChains(env *cli.Env, entries []inspect.Item) {
	for _, e := range entries {
		switch e.Chain {
		case "":
		case "ok":
			fmt.Fprintf(env.Stderr, "%s: the chain leads to a given root\n", output.Escape(e.Place))
		default:
			fmt.Fprintf(env.Stderr, "%s: the chain leads to no given root: %s\n", output.Escape(e.Place), output.Escape(e.Chain))
		}
	}
}

// unread is an error when something could not be read: the list is not whole.
func unread(env *cli.Env, entries []inspect.Item) error {
	n := 0
	for _, e := range entries {
		if e.Problem != "" {
			n++
			fmt.Fprintf(env.Stderr, "%s: %s\n", output.Escape(e.Place), output.Escape(e.Problem))
		}
	}
	if n == 0 {
		return nil
	}
	return errors.New("not everything could be read; meshctl certs verify says how to mend it")
}
