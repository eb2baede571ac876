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
	o.credentials = true
	cmd := command(&cobra.Command{
		Use:   "expiry [INPUT...]",
		Short: "Show what expires when",
		Long: `Show the expiry of certificates, revocation lists and tokens of remote secrets, soonest
first. With --context it also shows the certificates in Secrets that Gateways name. The exit code is 3 when something has expired, expires within --fail-within, or
cannot be read.

` + inputHelp,
		Example: `  meshctl certs expiry certs secrets.yaml istiod.example.com:15012

  # Show CAs and tokens of remote secrets of two clusters
  meshctl certs expiry --context cluster1,cluster2

  # Report to a nightly job
  meshctl certs expiry certs --fail-within 30d -o junit > expiry.xml

  # Report to node_exporter
  meshctl certs expiry /etc/cacerts -o openmetrics`,
	}, o.take, func(ctx context.Context) error { return o.run(ctx, env) })
	fs := cmd.Flags()
	o.bind(env, cmd)
	cli.DurationVar(fs, &o.failWithin, "fail-within", 0, "Exit with code 3 when something expires within this time")
	cli.TableVar(fs, &o.output, formatJUnit, formatOpenMetrics)
	return cmd
}

func (o *certsExpiryOptions) run(ctx context.Context, env *cli.Env) error {
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
			return cli.Findingsf("%d of %d expired, expire within %s, or cannot be read", failed, len(endings), cli.FormatDuration(o.failWithin))
		}
		return cli.Findingsf("%d of %d expired or cannot be read", failed, len(endings))
	}
	return nil
}
