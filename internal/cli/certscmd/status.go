package certscmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/ca"
)

type certsStatusOptions struct{ cli.PageFlags }

func newCertsStatusCmd(env *cli.Env) *cobra.Command {
	var o certsStatusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the signing CA on disk, in use and served",
		Long: `Show the signing CA of a running control plane: the CA in its directory or Secret, the
CA in use, and the CA of the last workload certificates, with the reasons for
differences. Fingerprints are the first bytes of the SHA-256; -o json shows the whole
SHA-256.

The command asks every replica in the cluster of the kubeconfig, as meshctl
proxy-status does, or at --server. JSON and YAML have an item for each replica. The exit
code is 3 when a replica does not use the CA on disk.`,
		Example: `  meshctl certs status --context kind-cluster1
  meshctl certs status --server 127.0.0.1:8080 -o json | jq '.[].differences'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.Bind(env, cmd)
	return cmd
}

func (o *certsStatusOptions) run(ctx context.Context, env *cli.Env) error {
	pages, several, err := cli.Ask[ca.Page](ctx, env, &o.PageFlags, "certs")
	if len(pages) == 0 {
		return err
	}
	if err := o.showPages(env, pages, several); err != nil {
		return err
	}
	var wrong []string
	for _, p := range pages {
		if p.Value.Error != "" || p.Value.Alarm != "" {
			wrong = append(wrong, fmt.Sprintf("%s: the CA in %s is not in use", p.Replica, p.Value.Source))
		}
	}
	return env.Conclude(wrong, err)
}

// showPages prints a table of all replicas, and below it the problems of each.
func (o *certsStatusOptions) showPages(env *cli.Env, pages []cli.Answer[ca.Page], several bool) error {
	table := cli.NewReplicaTable(several, "WHAT", "SIGNER", "SHA-256", "UNTIL", "ROOTS", "SINCE")
	table.Gap = 0
	var remarks []string
	for _, p := range pages {
		for _, row := range caRows(&p.Value) {
			table.Add(p.Replica, row...)
		}
		of := ""
		if several {
			of = p.Replica + ": "
		}
		for _, d := range p.Value.Differences {
			remarks = append(remarks, of+d)
		}
		for _, w := range p.Value.Warnings {
			remarks = append(remarks, of+ca.Line(w))
		}
	}
	if err := o.Show(env, pages, &table.Table, ""); err != nil || !o.Output.ForPeople() || len(remarks) == 0 {
		return err
	}
	_, err := fmt.Fprintf(env.Stdout, "\n%s\n", output.EscapeLines(remarks))
	return err
}

// caRows returns a row for each state of the CA.
func caRows(p *ca.Page) (rows [][]string) {
	row := func(what string, signer ca.Certificate, roots []ca.Certificate, since time.Time) {
		var names []string
		for _, r := range roots {
			names = append(names, shortSum(r.SHA256))
		}
		rows = append(rows, []string{what, cli.OrDash(signer.Subject), cli.OrDash(shortSum(signer.SHA256)), stampOrDash(signer.Until), cli.OrDash(strings.Join(names, " ")), stampOrDash(since)})
	}
	if p.Disk != nil {
		onDisk := "on disk"
		if p.Error != "" {
			onDisk = "on disk, refused"
		}
		row(onDisk, p.Disk.Signer, p.Disk.Roots, p.ReadAt)
	} else {
		rows = append(rows, []string{"on disk", "no certificates", "-", "-", "-", stampOrDash(p.ReadAt)})
	}
	if p.Loaded != nil {
		row("loaded", p.Loaded.Signer, p.Loaded.Roots, p.LoadedAt)
	}
	what := "served"
	for _, s := range slices.Backward(p.Served) {
		row(what, s.Signer, s.Roots, s.LastAt)
		what = "served before"
	}
	if p.Serving != nil && p.ServingSigner != nil {
		rows = append(rows, []string{"own port", p.ServingSigner.Subject, shortSum(p.ServingSigner.SHA256), stampOrDash(p.Serving.Until), "-", stampOrDash(p.Serving.From)})
	}
	return rows
}

// shortSum returns the first four bytes of a SHA-256.
func shortSum(sum string) string { return sum[:min(len(sum), 11)] }

func stampOrDash(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}
