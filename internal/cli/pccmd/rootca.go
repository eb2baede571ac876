package pccmd

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

// Istio's names of the secrets with the roots and with the certificate of a workload.
const (
	rootSecret = "ROOTCA"
	certSecret = "default"
)

type pcRootCompareOptions struct {
	pairOptions
	secret string
}

func newPCRootCompareCmd(env *cli.Env) *cobra.Command {
	var o pcRootCompareOptions
	cmd := &cobra.Command{
		Use:     "rootca-compare A B",
		Aliases: []string{"rc"},
		Short:   "Compare the root certificates of two Envoys",
		Long: `Compare the roots in secret ROOTCA, or --secret, of two Envoys. A root has the sign "-"
if only A has it, "+" if only B has it, and a space if both have it. Without a common
root the Envoys cannot connect to each other, and the exit code is 3. The command warns
when one Envoy does not trust the current certificate of the other, which is in the
secret default.

` + pairHelp,
		Example: `  meshctl pc rootca-compare web-1.apps web-2.apps
  meshctl pc rc deploy/web.apps deploy/web.apps --context kind-cluster1 --context-b kind-cluster2
  meshctl pc rc file:dump.json http://127.0.0.1:15000`,
		Args: func(cmd *cobra.Command, args []string) error { return o.take(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	cmd.Flags().StringVar(&o.secret, "secret", rootSecret, "`Name` of the secret with the roots")
	return cmd
}

// rootsCompared is the result of a comparison.
type rootsCompared struct {
	A      *envoySide   `json:"a"`
	B      *envoySide   `json:"b"`
	Secret string       `json:"secret"`
	Common []rootOfPair `json:"common"`
	OnlyA  []rootOfPair `json:"onlyA"`
	OnlyB  []rootOfPair `json:"onlyB"`
	// Warnings report an Envoy that does not trust the certificate of the other.
	Warnings []string `json:"warnings,omitempty"`
}

// rootOfPair is a root of one or both Envoys.
type rootOfPair struct {
	Subject  string    `json:"subject"`
	NotAfter time.Time `json:"notAfter"`
	SHA256   string    `json:"sha256"` // as openssl prints it
	cert     *x509.Certificate
}

func (o *pcRootCompareOptions) run(ctx context.Context, env *cli.Env) error {
	if o.secret == "" {
		return cli.Usagef("--secret is empty")
	}
	both, err := o.find(ctx, env)
	if err != nil {
		return err
	}
	secrets, err := readBoth(ctx, both, fetch.Secrets, proxyconfig.ReadSecrets)
	if err != nil {
		return err
	}
	var roots [2][]*x509.Certificate
	for i, s := range secrets {
		if roots[i], err = rootsIn(s, o.secret); err != nil {
			return fmt.Errorf("%s: %w", both[i].Source, err)
		}
	}
	result := rootsCompared{A: both[0], B: both[1], Secret: o.secret, Common: []rootOfPair{}, OnlyA: []rootOfPair{}, OnlyB: []rootOfPair{}}
	for _, c := range roots[0] {
		if slices.ContainsFunc(roots[1], c.Equal) {
			result.Common = append(result.Common, newRootOfPair(c))
		} else {
			result.OnlyA = append(result.OnlyA, newRootOfPair(c))
		}
	}
	for _, c := range roots[1] {
		if !slices.ContainsFunc(roots[0], c.Equal) {
			result.OnlyB = append(result.OnlyB, newRootOfPair(c))
		}
	}
	for i := range both {
		other := 1 - i
		if err := trusted(secrets[i], roots[other], env.Now()); err != nil && len(result.Common) > 0 {
			result.Warnings = append(result.Warnings, fmt.Sprintf("%s does not trust the certificate of %s: %v", both[other].Name, both[i].Name, err))
		}
	}
	if err := o.show(env, &result); err != nil {
		return err
	}
	for _, w := range result.Warnings {
		env.Warnf("%s", w)
	}
	// The sentences, with "identical" for one root in common, are Istio's.
	names := fmt.Sprintf("Both [%s] and [%s]", both[0].Name, both[1].Name)
	if len(result.Common) == 0 {
		return cli.Findingsf("%s have the non identical %s, theoretically the connectivity between them is unavailable", output.Escape(names), output.Escape(o.secret))
	}
	env.Notef("%s have the identical %s, theoretically the connectivity between them is available", names, o.secret)
	return nil
}

func newRootOfPair(c *x509.Certificate) rootOfPair {
	return rootOfPair{c.Subject.String(), c.NotAfter.UTC(), certs.Fingerprint(c), c}
}

// trusted returns an error if roots do not verify the certificate of an Envoy. It
// accepts an Envoy without a certificate.
func trusted(s *proxyconfig.Secrets, roots []*x509.Certificate, now time.Time) error {
	for _, item := range slices.Backward(s.Items) { // the active one first
		if item.Name != certSecret || item.Cert == nil || item.Cert.IsCA {
			continue
		}
		chain, err := certs.ParseCerts(item.PEM)
		if err != nil {
			return err
		}
		_, err = chain[0].Verify(x509.VerifyOptions{
			Roots: certs.Pool(roots), Intermediates: certs.Pool(chain[1:]), CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		return err
	}
	return nil
}

// rootsIn returns the roots of a secret, sorted and each once. It prefers an active
// secret to a warming one of the same name.
func rootsIn(s *proxyconfig.Secrets, name string) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	state, there := "", false
	// Active secrets follow warming ones.
	for _, item := range slices.Backward(append(slices.Clone(s.Static), s.Items...)) {
		if item.Name != name || there && item.State != state {
			continue
		}
		state, there = item.State, true
		if len(item.PEM) == 0 {
			continue
		}
		list, err := certs.ParseCerts(item.PEM)
		switch {
		case err != nil:
			return nil, fmt.Errorf("secret %s: %w", output.Escape(name), err)
		case !list[0].IsCA:
			return nil, fmt.Errorf("secret %s holds the certificate of a workload, not roots%s", output.Escape(name), otherRoots(s))
		}
		found = append(found, list...)
	}
	switch {
	case !there:
		return nil, errors.New("cannot find " + output.Escape(name) + " from secret" + otherRoots(s))
	case len(found) == 0:
		return nil, fmt.Errorf("secret %s holds no certificate: Envoy has none, or it is redacted", output.Escape(name))
	}
	slices.SortFunc(found, func(a, b *x509.Certificate) int {
		return cmp.Or(strings.Compare(a.Subject.String(), b.Subject.String()), strings.Compare(certs.Fingerprint(a), certs.Fingerprint(b)))
	})
	return slices.CompactFunc(found, (*x509.Certificate).Equal), nil
}

// otherRoots lists the secrets, or only the secrets with roots.
func otherRoots(s *proxyconfig.Secrets) string {
	var roots, all []string
	for _, item := range append(slices.Clone(s.Items), s.Static...) {
		name := output.Escape(item.Name)
		all = append(all, name)
		if item.Cert != nil && item.Cert.IsCA {
			roots = append(roots, name)
		}
	}
	list := func(names []string) string {
		slices.Sort(names)
		return strings.Join(slices.Compact(names), ", ")
	}
	switch {
	case len(all) == 0:
		return ": there are no secrets; roots in files are not in a dump"
	case len(roots) == 0:
		return ": there are " + list(all) + ", none with roots; roots in files are not in a dump"
	}
	return ": there are roots in " + list(roots) + ", --secret names one of them"
}

func (o *pcRootCompareOptions) show(env *cli.Env, r *rootsCompared) error {
	if !o.output.OfTable() {
		return output.Write(env.Stdout, o.output, r)
	}
	var text strings.Builder
	for _, part := range []struct {
		sign  string
		roots []rootOfPair
	}{{" ", r.Common}, {"-", r.OnlyA}, {"+", r.OnlyB}} {
		for _, root := range part.roots {
			fmt.Fprintf(&text, "%s %s\n", part.sign, cli.DescribeRoot(root.cert))
		}
	}
	_, err := io.WriteString(env.Stdout, text.String())
	return err
}
