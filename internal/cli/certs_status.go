package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/ca"
)

type certsStatusOptions struct{ xdsOptions }

func newCertsStatusCmd(env *Env) *cobra.Command {
	var o certsStatusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Compare the signing CA on disk, loaded and given out",
		Long: `Compare the signing CA of a running control plane: what its directory or
Secret holds, what it has loaded, and what workloads were given last, with the reason where
they differ. Fingerprints are the beginning of the SHA-256; -o json has all of it.

The source is the control plane's debug address (--server), which answers the
user that runs it on its own machine, and others with --token-file. The exit code is 3 when what is on disk is not
what is loaded.`,
		Example: `  meshctl certs status
  meshctl certs status --server 127.0.0.1:8080 -o json | jq .differences`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(cmd.Flags())
	return cmd
}

func (o *certsStatusOptions) run(ctx context.Context, env *Env) error {
	var p ca.Page
	if err := o.debug(ctx, env, "certs", nil, &p); err != nil {
		return err
	}
	if err := o.show(env, p, caTable(p), ""); err != nil {
		return err
	}
	if o.output == output.FormatTable {
		for i, d := range p.Differences {
			if i == 0 {
				fmt.Fprintln(env.Stdout)
			}
			fmt.Fprintln(env.Stdout, output.Escape(d))
		}
		for i, w := range p.Warnings {
			if i+len(p.Differences) == 0 {
				fmt.Fprintln(env.Stdout)
			}
			fmt.Fprintln(env.Stdout, output.Escape(ca.Line(w)))
		}
	}
	if p.Error != "" || p.Alarm != "" {
		return findingsf("the CA in %s is not in use as it is", p.Source)
	}
	return nil
}

// caTable has a row for each of the states of the CA.
func caTable(p ca.Page) *output.Table {
	t := &output.Table{Header: []string{"WHAT", "SIGNER", "SHA-256", "UNTIL", "ROOTS", "SINCE"}}
	row := func(what string, signer ca.Certificate, roots []ca.Certificate, since time.Time) {
		var names []string
		for _, r := range roots {
			names = append(names, shortSum(r.SHA256))
		}
		t.Rows = append(t.Rows, []string{what, orDash(signer.Subject), orDash(shortSum(signer.SHA256)), stampOrDash(signer.Until), orDash(strings.Join(names, " ")), stampOrDash(since)})
	}
	if p.Disk != nil {
		onDisk := "on disk"
		if p.Error != "" {
			onDisk = "on disk, refused"
		}
		row(onDisk, p.Disk.Signer, p.Disk.Roots, p.ReadAt)
	} else {
		t.Rows = append(t.Rows, []string{"on disk", "no certificates", "-", "-", "-", stampOrDash(p.ReadAt)})
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
		t.Rows = append(t.Rows, []string{"own port", p.ServingSigner.Subject, shortSum(p.ServingSigner.SHA256), stampOrDash(p.Serving.Until), "-", stampOrDash(p.Serving.From)})
	}
	return t
}

// shortSum is the first four bytes of a SHA-256.
func shortSum(sum string) string { return sum[:min(len(sum), 11)] }

func stampOrDash(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}
