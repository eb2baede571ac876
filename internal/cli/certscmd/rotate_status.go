package certscmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
)

type rotateStatus struct {
	rotateStep
	output output.Format
}

func newRotateStatusCmd(env *cli.Env) *cobra.Command {
	o := &rotateStatus{}
	cmd := command(&cobra.Command{
		Use:   "status [DIR]",
		Short: "Show the state of a rotation and what it waits for",
		Long: `Show the state of each cluster, with the fingerprints of its signer and roots, and what
the next step waits for. The exit code is 3 when a directory is missing, fails
verification, was changed, or is not part of the rotation.

With --server or --ask-proxies the command asks the control planes how many connected
proxies are ready for the next step; -o json lists all proxies that are not ready.`,
		Example: `  meshctl certs rotate-root status certs
  meshctl certs rotate-root status certs --server 127.0.0.1:8081,127.0.0.1:8082
  meshctl certs rotate-root status certs -o json`,
	}, o.take, func(ctx context.Context) error { return o.run(ctx, env) })
	o.bind(env, cmd)
	cli.TextVar(cmd.Flags(), &o.output)
	return cmd
}

func (o *rotateStatus) run(ctx context.Context, env *cli.Env) error {
	dir, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	status, err := dir.Status()
	if err != nil {
		return err
	}
	if status == nil {
		if !o.output.OfTable() {
			return output.Write(env.Stdout, o.output, struct {
				Command string `json:"command"`
			}{"start"})
		}
		fmt.Fprintf(env.Stdout, "no rotation is under way in %s\n", o.target())
		return nil
	}
	var answer *rotateAnswer
	if status.Requires != nil && o.asks() {
		if answer, err = o.inquire(ctx, env, status.Requires); err != nil {
			return err
		}
	}
	if err := o.write(env, status, answer); err != nil {
		return err
	}
	if !status.Fine() {
		return cli.Findingsf("the rotation cannot continue: restore the directories, or use next --force")
	}
	if answer != nil {
		return answer.silent()
	}
	return nil
}

func (o *rotateStatus) write(env *cli.Env, s *rotate.Status, answer *rotateAnswer) error {
	if !o.output.OfTable() {
		return output.Write(env.Stdout, o.output, struct {
			*rotate.Status
			Asked *rotateAnswer `json:"asked,omitzero"`
		}{s, answer})
	}
	fmt.Fprintf(env.Stdout, "%s: %s\n", s.Phase, s.Phase.Describe())
	where := "DIRECTORY"
	if len(o.contexts) > 0 {
		where = "SECRET"
	}
	t := &output.Table{Header: []string{"CLUSTER", where, "SIGNER", "ROOTS", "PROBLEM"}, Gap: 3}
	for _, d := range s.Directory {
		row := []string{string(d.Cluster), string(d.Condition), d.Signer, strings.Join(d.Roots, " "), d.Problem}
		for i, cell := range row {
			row[i] = cli.OrDash(cell)
		}
		t.Rows = append(t.Rows, row)
	}
	if err := t.Write(env.Stdout); err != nil {
		return err
	}
	if !s.Fine() {
		return nil // the error has the advice
	}
	fmt.Fprintf(env.Stdout, "waits for: %s\n", waitsFor(s, answer))
	switch {
	case answer != nil:
		answer.write(env, s.Requires)
	case s.Requires != nil:
		fmt.Fprintln(env.Stdout, "proxies:", notAsked)
	}
	from := ""
	if !s.SafeFrom.IsZero() {
		from = ", from " + s.SafeFrom.UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(env.Stdout, "next%s: meshctl certs rotate-root %s %s\n", from, s.Command, o.again())
	return nil
}

// waitsFor describes everything that the next step waits for: the time, and by the
// answers of control planes these and their proxies.
func waitsFor(s *rotate.Status, answer *rotateAnswer) string {
	var parts []string
	if s.Waits != rotate.Nothing {
		parts = append(parts, s.Waits)
	}
	if answer != nil {
		if n := len(answer.Behind); n > 0 {
			parts = append(parts, proxies(n)+" to be ready")
		}
		silent, behind := 0, 0
		for i := range answer.ControlPlanes {
			switch c := &answer.ControlPlanes[i]; {
			case c.Error != "":
				silent++
			case c.Problem != "":
				behind++
			}
		}
		if silent > 0 {
			parts = append(parts, output.Plural(silent, "control plane")+" to answer")
		}
		if behind > 0 {
			parts = append(parts, output.Plural(behind, "control plane")+" to be ready")
		}
	}
	if len(parts) == 0 {
		return rotate.Nothing
	}
	return strings.Join(parts, "; ")
}
