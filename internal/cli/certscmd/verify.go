package certscmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

type certsVerifyOptions struct {
	readOptions
	roots       string
	trustDomain string
	output      output.Format
}

func newCertsVerifyCmd(env *cli.Env) *cobra.Command {
	o := &certsVerifyOptions{}
	cmd := command(&cobra.Command{
		Use:   "verify [INPUT...]",
		Short: "Check certificates",
		Long: `Check the files of a CA, a chain or a trust bundle as the control plane and the proxies
do: the key matches the certificate, the chain leads to a root, the usages fit, nothing
is weak, exposed or about to expire, and the clusters of --context trust each other.
Each finding has a stable code (docs/certs.md), a place, a reason and a fix. The exit
code is 3 when there are findings.

` + inputHelp,
		Example: `  meshctl certs verify certs --trust-domain cluster.local

  # Check a CA before you apply it
  meshctl certs cacerts certs/cluster1 | meshctl certs verify -

  # Check the CAs of two clusters
  meshctl certs verify --context cluster1,cluster2

  # Check a chain with the roots of the mesh
  meshctl certs verify cert-chain.pem --roots certs/root-cert.pem

  # Report to CI
  meshctl certs verify certs -o junit > certs.xml`,
	}, o.take, func(ctx context.Context) error { return o.run(ctx, env) })
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.StringVar(&o.roots, "roots", "", "`File` with roots to trust in addition to the roots in the inputs")
	fs.StringVar(&o.trustDomain, "trust-domain", "", "Trust `domain` that SPIFFE ids must have and CAs must permit")
	cli.TableVar(fs, &o.output, formatJUnit)
	return cmd
}

func (o *certsVerifyOptions) run(ctx context.Context, env *cli.Env) error {
	if o.trustDomain != "" && !mesh.IsTrustDomain(o.trustDomain) {
		return cli.Usagef("--trust-domain: %q is not of a-z, 0-9, '.', '-' and '_'", o.trustDomain)
	}
	roots, err := readRoots(o.roots)
	if err != nil {
		return err
	}
	found, err := o.load(ctx, env)
	if err != nil {
		return err
	}
	apart, without, err := o.findMesh(ctx, env)
	if err != nil {
		return err
	}
	judge := togetherOf(found.Sets)
	judge.Now, judge.TrustDomain, judge.Roots = env.Now(), o.trustDomain, roots
	findings, places, err := o.find(ctx, env, found.Sets, judge)
	if err != nil {
		return err
	}
	findings = append(apart, findings...)
	if err := o.write(env, findings, places); err != nil {
		return err
	}
	return o.conclude(env, findings, places, without)
}

// find checks each set with the CAs and lists of all sets. places are the checked ones.
func (o *certsVerifyOptions) find(ctx context.Context, env *cli.Env, sets []verify.Set, judge verify.Options) (findings []verify.Finding, places []string, err error) {
	known := map[verify.Finding]bool{} // inputs may overlap
	for _, s := range sets {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		for _, f := range s.Files {
			if isRequest(f) {
				env.Notef("%s: certificate requests are not checked", f.Place)
				continue
			}
			places = append(places, f.Place)
		}
		for _, f := range verify.Check(s, judge) {
			if !known[f] {
				known[f] = true
				findings = append(findings, f)
			}
		}
	}
	return findings, places, nil
}

// conclude returns the result. Clusters without a CA are no finding, as the CA may be
// elsewhere.
func (o *certsVerifyOptions) conclude(env *cli.Env, findings []verify.Finding, places, without []string) error {
	nothing := ""
	if len(without) > 0 && !o.namesSecrets() {
		nothing = fmt.Sprintf("there is no CA to check in %s: namespace %s has neither the Secret %s nor %s",
			strings.Join(without, ", "), o.namespace, store.CACerts, store.SelfSignedSecret)
	}
	errs := 0
	for _, f := range findings {
		if f.Severity == verify.Error {
			errs++
		}
	}
	switch {
	case nothing != "" && len(findings) == 0 && len(without) == len(o.contexts):
		return fmt.Errorf("%s; name another with --namespace, or write them with: %s", nothing, store.WriteCommand(store.CACerts, o.namespace, o.contexts...))
	case nothing != "":
		env.Notef("%s", nothing)
	}
	if len(findings) > 0 {
		env.NotRead(o.unread...)
		return cli.Findingsf("%s, %s", output.Plural(errs, "error"), output.Plural(len(findings)-errs, "warning"))
	}
	env.Notef("nothing found in %s of %s", output.Plural(len(places), "place"), o.looked(env))
	return cli.Incomplete(o.unread...)
}

// togetherOf returns the CAs of all sets, each once, the signers of clusters and the
// revocation lists, for the check of each set.
func togetherOf(sets []verify.Set) (o verify.Options) {
	seen := map[string]bool{}
	for _, s := range sets {
		if signer := s.Signer(); signer != nil && !slices.ContainsFunc(o.Clusters, signer.Equal) {
			o.Clusters = append(o.Clusters, signer)
		}
		for _, f := range s.Files {
			for i, b := range f.Blocks {
				switch {
				case b.Cert != nil && b.Cert.IsCA && !seen[string(b.Cert.Raw)]:
					seen[string(b.Cert.Raw)] = true
					o.Signers = append(o.Signers, b.Cert)
				case b.CRL != nil && !seen[string(b.CRL.Raw)]:
					seen[string(b.CRL.Raw)] = true
					o.Lists = append(o.Lists, verify.PlacedList{RevocationList: b.CRL, Place: f.At(i)})
				}
			}
		}
	}
	return o
}

// isRequest reports whether a file holds only certificate requests.
func isRequest(f verify.File) bool {
	return len(f.Blocks) > 0 && !slices.ContainsFunc(f.Blocks, func(b certs.Block) bool { return b.CSR == nil })
}

func (o *certsVerifyOptions) write(env *cli.Env, findings []verify.Finding, places []string) error {
	if o.output == formatJUnit {
		return output.WriteJUnit(env.Stdout, "certs verify", verifyCases(findings, places))
	}
	if o.output.ForPeople() && len(findings) == 0 {
		return nil
	}
	t := &output.Table{Header: []string{"SEVERITY", "CODE", "PLACE", "CERTIFICATE", "REASON", "FIX"}, Gap: 3, Name: "PLACE"}
	for _, f := range findings {
		cert := "-"
		if f.Subject != "" {
			cert = f.Subject + " " + f.Fingerprint
		}
		t.Rows = append(t.Rows, []string{string(f.Severity), string(f.Code), f.Place, cert, f.Reason, f.Fix})
	}
	return cli.WriteResult(env, o.output, findings, t)
}

// verifyCases returns a failed test for each finding, and a passed one for each place
// without findings.
func verifyCases(findings []verify.Finding, places []string) []output.TestCase {
	cases := []output.TestCase{}
	for _, f := range findings {
		text := strings.TrimSpace(f.Subject + " " + f.Fingerprint)
		cases = append(cases, output.TestCase{
			Class: string(f.Code), Name: f.Place,
			Failure: &output.TestFailure{Type: string(f.Severity), Message: f.Reason, Text: strings.TrimPrefix(text+"; "+f.Fix, "; ")},
		})
	}
	seen := map[string]bool{} // inputs may overlap
	for _, place := range places {
		if seen[place] {
			continue
		}
		seen[place] = true
		// The place of a finding may have a line or a certificate.
		if !slices.ContainsFunc(findings, func(f verify.Finding) bool {
			rest, at := strings.CutPrefix(f.Place, place)
			return at && (rest == "" || rest[0] == ':' || rest[0] == ' ')
		}) {
			cases = append(cases, output.TestCase{Class: "ok", Name: place})
		}
	}
	return cases
}
