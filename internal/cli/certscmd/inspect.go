package certscmd

import (
	"context"
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
	cmd := command(&cobra.Command{
		Use:   "inspect INPUT...",
		Short: "Show certificates, keys and tokens",
		Long: `Show the certificates, keys, certificate requests, revocation lists and tokens in the
inputs. The command verifies only the chain of a TLS server, with --roots.

` + inputHelp,
		Example: `  meshctl certs inspect certs/cluster1
  meshctl certs inspect 127.0.0.1:15012 --server-name istiod.istio-system.svc --roots certs/root-cert.pem

  # Show the certificates of a proxy
  curl -s 127.0.0.1:15000/config_dump | meshctl certs inspect -
  meshctl pc secrets --admin 127.0.0.1:15000 -o json | meshctl certs inspect -`,
	}, o.take, func(ctx context.Context) error { return o.run(ctx, env) })
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringVar(&o.roots, "roots", "", "`File` with the roots for the chain of host:port")
	cli.TableVar(fs, &o.output, formatText)
	return cmd
}

func (o *certsInspectOptions) run(ctx context.Context, env *cli.Env) error {
	if o.roots != "" && !slices.ContainsFunc(o.inputs, inspect.IsHost) {
		return cli.Usagef("--roots is for the chain of host:port; for files use: meshctl certs verify FILE --roots FILE")
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
			noteChains(env, entries)
		}
	}
	if err != nil {
		return err
	}
	return o.incomplete(entries)
}

// noteChains reports whether the roots verify the chains of servers, for which the table
// has no column.
func noteChains(env *cli.Env, entries []inspect.Item) {
	for _, e := range entries {
		switch e.Chain {
		case "":
		case "ok":
			env.Notef("%s: the chain leads to a given root", e.Place)
		default:
			env.Notef("%s: the chain leads to no given root: %s", e.Place, e.Chain)
		}
	}
}

// incomplete returns an error if something could not be read, as the list is incomplete.
func (o *certsInspectOptions) incomplete(entries []inspect.Item) error {
	unread := o.unread
	for _, e := range entries {
		if e.Problem != "" {
			unread = append(unread, fmt.Errorf("%s: %s; meshctl certs verify shows how to mend it", e.Place, e.Problem))
		}
	}
	return cli.Incomplete(unread...)
}
