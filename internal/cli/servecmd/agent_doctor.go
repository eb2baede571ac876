package servecmd

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/agent"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
)

type agentDoctorOptions struct {
	agent  agentOptions
	output output.Format
}

func newAgentDoctor(env *cli.Env) *cobra.Command {
	o := &agentDoctorOptions{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out why a workload gets no certificate or its proxy does not start",
		Long: `Check everything between a workload and its certificate, in order: directories, ports,
Envoy and its bootstrap, the token and the clock, the roots, DNS, TCP and TLS to the
certificate authority, and finally a request for a certificate, which the command
discards. The first check that fails is the cause; the command prints it with its fix.

The command accepts the flags and the environment of meshctl agent, and may run beside
the agent. The agent runs these checks itself when its first request for a certificate
fails.

The exit code is 3 if a check fails.`,
		Example: `  meshctl agent doctor
  meshctl agent doctor --pod-name client --pod-namespace sample --service-account client \
    --discovery-address 127.1.0.2:15012 --root-ca root-cert.pem --token token -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.agent.bind(cmd.Flags())
	cli.TableVar(cmd.Flags(), &o.output)
	return cmd
}

func (o *agentDoctorOptions) run(ctx context.Context, env *cli.Env) error {
	cfg, opts, err := o.agent.resolve(env)
	if err != nil {
		return err
	}
	findings := agent.Diagnose(ctx, cfg, opts)
	table := &output.Table{Header: []string{"CHECK", "RESULT", "DETAIL"}}
	for _, f := range findings {
		result := "ok"
		if f.Cause != "" {
			result = "failed"
		}
		table.Rows = append(table.Rows, []string{f.Check, result, cmp.Or(f.Cause, f.Detail)})
	}
	if err := cli.WriteResult(env, o.output, findings, table); err != nil {
		return err
	}
	last := findings[len(findings)-1]
	if last.Cause == "" {
		return nil
	}
	if last.Fix != "" {
		return cli.Findingsf("%s: %s; to fix it: %s", last.Check, last.Cause, last.Fix)
	}
	return cli.Findingsf("%s: %s", last.Check, last.Cause)
}
