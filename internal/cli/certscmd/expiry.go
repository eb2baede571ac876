package certscmd

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/inspect"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
)

type certsExpiryOptions struct {
	readOptions
	failWithin time.Duration
	output     output.Format
}

func newCertsExpiryCmd(env *cli.Env) *cobra.Command {
	o := &certsExpiryOptions{}
	cmd := &cobra.Command{
		Use:   "expiry [INPUT...]",
		Short: "Show what expires when",
		Long: `Show everything that expires in one list, what ends first coming first:
certificates, revocation lists, and the tokens of remote secrets. Exit code 3
when something has expired, ends within --fail-within, or cannot be read.

` + inputHelp,
		Example: `  meshctl certs expiry certs secrets.yaml istiod.example.com:15012

  # the CAs and the tokens of remote secrets of two clusters
  meshctl certs expiry --context cluster1,cluster2

  # for a nightly job
  meshctl certs expiry certs --fail-within 30d -o junit > expiry.xml

  # for node_exporter's text files
  meshctl certs expiry /etc/cacerts -o openmetrics`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			o.inputs = args
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	cli.DurationVar(fs, &o.failWithin, "fail-within", 0, "Exit with code 3 when something ends within this time")
	cli.TableVar(fs, &o.output, formatJUnit, formatOpenMetrics)
	return cmd
}

func (o *certsExpiryOptions) run(ctx context.Context, env *cli.Env) error {
	if err := o.check(); err != nil {
		return err
	}
	found, err := o.load(ctx, env)
	if err != nil {
		return err
	}
	endings := inspect.Expiry(found, o.failWithin, env.Now())
	switch o.output {
	case formatJUnit:
		err = inspect.WriteJUnit(env.Stdout, endings)
	case formatOpenMetrics:
		err = inspect.WriteOpenMetrics(env.Stdout, endings)
	default:
		err = cli.WriteResult(env, o.output, endings, inspect.EndingTable(endings))
	}
	if err != nil {
		return err
	}
	if failed := inspect.Failed(endings); failed > 0 {
		if o.failWithin > 0 {
			return cli.Findingsf("%d of %d expired, end within %s, or cannot be read", failed, len(endings), cli.FormatDuration(o.failWithin))
		}
		return cli.Findingsf("%d of %d expired or cannot be read", failed, len(endings))
	}
	return nil
}
