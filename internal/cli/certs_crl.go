package cli

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/crl"
	"github.com/meshctl/meshctl/internal/certs/rotation"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
)

type certsCRLOptions struct {
	dir         string
	revoke      []string
	reason      string
	add         []string
	nextUpdate  time.Duration
	dropUnknown bool
}

func newCertsCRLCmd(env *Env) *cobra.Command {
	o := &certsCRLOptions{}
	cmd := &cobra.Command{
		Use:   "crl DIR",
		Short: "Revoke certificates: make the revocation lists of CAs",
		Long: `Make the next revocation list of each CA in DIR whose key is there, and write
them into ca-crl.pem of all of these: a root with the directories of clusters, as
root-ca and intermediate-ca make them, or the directory of one CA. What was revoked
before stays revoked. Lists of CAs whose keys are elsewhere stay, too.

--revoke names a certificate: a file whose first certificate is meant, or, when DIR
is the CA that signed it, its serial number. Without --revoke the lists are only
made anew, which has to happen before their next update: after that, Envoy refuses
everybody.

Envoy wants a list of each CA of the mesh, the root included. One of a CA whose key
is not in DIR is made where the key is, and brought with --add. While a root is being
replaced, the new CAs are made lists, too. Nothing is written that serve or Envoy
could not use.`,
		Example: `  # lists that revoke nothing, then a workload's certificate and a CA
  meshctl certs crl certs
  meshctl certs crl certs --revoke helloworld/cert-chain.pem --reason key-compromise
  meshctl certs crl certs --revoke certs/cluster2/ca-cert.pem

  # by its serial number, with the key of the root kept elsewhere
  meshctl certs crl certs/cluster1 --revoke 5c09a21ce1a4d1a95b3ef9d6e1a3fd6b --add root-crl.pem`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("name one directory")
			}
			o.dir = args[0]
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&o.revoke, "revoke", nil, "Revoke this certificate: a `file`, or a serial number in hex; may be repeated")
	fs.StringVar(&o.reason, "reason", "unspecified", "Why: one of "+strings.Join(reasonNames(), ", "))
	fs.StringSliceVar(&o.add, "add", nil, "Take in the lists of this `file`, made elsewhere; may be repeated")
	durationVar(fs, &o.nextUpdate, "next-update", 30*day, "How long the lists hold")
	fs.BoolVar(&o.dropUnknown, "drop-unknown", false, "Leave out lists of CAs that are not in DIR, such as those of a root that was replaced")
	return cmd
}

func reasons() []struct {
	name   string
	reason certs.Reason
} {
	return []struct {
		name   string
		reason certs.Reason
	}{
		{"unspecified", certs.Unspecified},
		{"key-compromise", certs.KeyCompromise},
		{"ca-compromise", certs.CACompromise},
		{"affiliation-changed", certs.AffiliationChanged},
		{"superseded", certs.Superseded},
		{"cessation-of-operation", certs.CessationOfOperation},
		{"privilege-withdrawn", certs.PrivilegeWithdrawn},
	}
}

func reasonNames() []string {
	var names []string
	for _, r := range reasons() {
		names = append(names, r.name)
	}
	return names
}

func (o *certsCRLOptions) run(_ context.Context, env *Env) error {
	opts, err := o.options(env)
	if err != nil {
		return err
	}
	for _, path := range o.add {
		data, err := files.Read(path, store.MaxFile)
		if err != nil {
			return err
		}
		lists, err := certs.ParseCRLs(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		opts.Add = append(opts.Add, crl.Lists{Place: path, Lists: lists})
	}
	change := &rotation.Dir{Path: o.dir, Now: env.Now, Rand: rand.Reader}
	if opts.Signers, err = change.Authorities(); err != nil {
		return err
	}
	r, err := crl.Update(opts)
	if err != nil {
		return err
	}
	for _, note := range r.Notes {
		fmt.Fprintln(env.Stderr, note)
	}
	printPaths(env.Stdout, r.Wrote)
	for _, l := range r.Made {
		printList(env, l, "")
	}
	for _, l := range r.Kept {
		printList(env, l, ", kept")
	}
	return nil
}

func printList(env *Env, l *x509.RevocationList, note string) {
	until := "never"
	if !l.NextUpdate.IsZero() {
		until = l.NextUpdate.UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(env.Stdout, "%s: number %s, %d revoked, next update %s%s\n", l.Issuer, l.Number, len(l.RevokedCertificateEntries), until, note)
}

// options checks the flags.
func (o *certsCRLOptions) options(env *Env) (crl.Options, error) {
	opts := crl.Options{Dir: o.dir, DropUnknown: o.dropUnknown, Life: o.nextUpdate, Now: env.Now(), Rand: rand.Reader}
	i := slices.Index(reasonNames(), o.reason)
	switch {
	case i < 0:
		return opts, usagef("--reason is %q: want one of %s", o.reason, strings.Join(reasonNames(), ", "))
	case i > 0 && len(o.revoke) == 0:
		return opts, usagef("--reason goes with --revoke, which is not given")
	case o.nextUpdate == 0:
		return opts, usagef("--next-update must be more than 0")
	}
	opts.Reason = reasons()[i].reason
	for _, what := range o.revoke {
		t, err := readTarget(what)
		if err != nil {
			return opts, err
		}
		opts.Revoke = append(opts.Revoke, t)
	}
	return opts, nil
}

// maxSerial is the length of the longest serial number, in hex digits: 20 bytes.
const maxSerial = 40

// readTarget reads the certificate that is to be revoked: the first of a file,
// or the one with a serial number.
func readTarget(what string) (crl.Target, error) {
	t := crl.Target{Name: what}
	data, err := files.Read(what, maxRoots)
	if errors.Is(err, fs.ErrNotExist) {
		digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(what), "0x"), ":", "")
		serial, ok := new(big.Int).SetString(digits, 16)
		if !ok || serial.Sign() <= 0 || len(digits) > maxSerial || strings.ContainsAny(what, string(os.PathSeparator)+"_") {
			return t, usagef("--revoke: %q is neither a file nor a serial number in hex", what)
		}
		t.Serial = serial
		return t, nil
	}
	if err != nil {
		return t, err
	}
	if pem := certs.FromDER(data); pem != nil {
		data = pem
	}
	for _, b := range certs.Scan(data) {
		if b.Cert != nil {
			t.Cert = b.Cert
			return t, nil
		}
	}
	return t, fmt.Errorf("%s: it holds no certificate that could be revoked", what)
}
