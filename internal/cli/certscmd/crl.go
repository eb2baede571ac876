package certscmd

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
	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
)

type certsCRLOptions struct {
	clusterFlags
	dir         string
	revoke      []string
	reason      string
	add         []string
	nextUpdate  time.Duration
	dropUnknown bool
	dryRun      bool
}

func newCertsCRLCmd(env *cli.Env) *cobra.Command {
	o := &certsCRLOptions{}
	cmd := command(&cobra.Command{
		Use:   "crl [DIR]",
		Short: "Revoke certificates in the revocation lists of CAs",
		Long: `Create the next revocation list of each CA whose key is in DIR, and write all lists to
the ca-crl.pem of each CA. DIR is a root with the directories of clusters, as root-ca
and intermediate-ca create it, or the directory of one CA. Revoked certificates stay
revoked, and the command does not change lists of CAs without a key.

With --context instead of DIR the command does this for the CAs in the Secrets cacerts
of clusters: each Secret gets all lists. If a Secret changes while the command runs, the
command does not overwrite the Secret: run the command again.

--revoke takes a file with the certificate, or its serial number if DIR contains only
the CA that signed it. Without --revoke the command only renews the lists. Renew the
lists before their next update: after that time Envoy refuses every peer.

Envoy needs a list of each CA of the mesh, also of the root. If the key of a CA is on
another machine, create the list there and add it with --add. During a rotation of the
root the new CAs get lists, too. The command writes nothing that serve or Envoy cannot
use.`,
		Example: `  # Create lists that revoke nothing, then revoke a workload certificate and a CA
  meshctl certs crl certs
  meshctl certs crl certs --revoke helloworld/cert-chain.pem --reason key-compromise
  meshctl certs crl certs --revoke certs/cluster2/ca-cert.pem

  # Revoke by serial number, with a list of the root from elsewhere
  meshctl certs crl certs/cluster1 --revoke 5c09a21ce1a4d1a95b3ef9d6e1a3fd6b --add root-crl.pem

  # Revoke for the CAs in clusters, with a list of the root from elsewhere
  meshctl certs crl --context cluster1,cluster2 --add certs/ca-crl.pem --dry-run
  meshctl certs crl --context cluster1,cluster2 --revoke helloworld/cert-chain.pem`,
	}, func(args []string) error {
		switch {
		case len(args) == 1 && len(o.contexts) == 0:
			o.dir = args[0]
		case len(args) != 0 || len(o.contexts) == 0:
			return cli.Usagef("name one directory, or the clusters with --context")
		}
		return nil
	}, func(ctx context.Context) error { return o.run(ctx, env) })
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.BoolVar(&o.dryRun, "dry-run", false, "With --context, let the API servers check everything, and write nothing")
	fs.StringSliceVar(&o.revoke, "revoke", nil, "Revoke the certificate in this `file`, or with this serial number in hex; may be repeated")
	cli.ChoiceVar(fs, &o.reason, "reason", "Reason of the revocation", slices.DeleteFunc(reasons(), func(s string) bool { return s == "" })...)
	fs.StringSliceVar(&o.add, "add", nil, "Add the lists in this `file`, which were created elsewhere; may be repeated")
	cli.DurationVar(fs, &o.nextUpdate, "next-update", 30*cli.Day, "Lifetime of the lists")
	fs.BoolVar(&o.dropUnknown, "drop-unknown", false, "Drop the lists of unknown CAs, such as a replaced root")
	cli.MarkWeakening(fs, "drop-unknown")
	return cmd
}

// reasons returns the name of each reason at the index of its number.
func reasons() []string {
	return []string{
		certs.Unspecified:          "unspecified",
		certs.KeyCompromise:        "key-compromise",
		certs.CACompromise:         "ca-compromise",
		certs.AffiliationChanged:   "affiliation-changed",
		certs.Superseded:           "superseded",
		certs.CessationOfOperation: "cessation-of-operation",
		certs.PrivilegeWithdrawn:   "privilege-withdrawn",
	}
}

func (o *certsCRLOptions) run(ctx context.Context, env *cli.Env) error {
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
		opts.Add = append(opts.Add, lists...)
	}
	if o.dir == "" {
		return o.inClusters(ctx, env, opts)
	}
	change := &rotate.Dir{Path: o.dir, Now: env.Now, Rand: rand.Reader}
	if opts.Signers, err = change.Authorities(); err != nil {
		return err
	}
	r, err := crl.Update(o.dir, opts)
	if err != nil {
		return err
	}
	printLists(env, r)
	return nil
}

// inClusters creates the lists of the CAs in Secrets, and writes all to each.
func (o *certsCRLOptions) inClusters(ctx context.Context, env *cli.Env, opts crl.Options) error {
	clusters, err := o.connect(env)
	if err != nil {
		return err
	}
	// In this order, the second of two concurrent runs is refused before it writes.
	slices.SortFunc(clusters, func(a, b *store.ClusterSecrets) int { return strings.Compare(string(a.ID), string(b.ID)) })
	var puts []*store.SecretChange
	var sets []*store.Material
	for _, c := range clusters {
		put, err := c.PlanLists(ctx, store.CACerts)
		if err != nil {
			return err
		}
		puts, sets = append(puts, put), append(sets, put.Material())
	}
	storage, err := rotate.OpenSecretStorage(ctx, clusters)
	if err != nil {
		return err
	}
	change := &rotate.Dir{Storage: storage, Now: env.Now, Rand: rand.Reader}
	if opts.Signers, err = change.Authorities(); err != nil {
		return err
	}
	r, err := crl.Next(sets, opts)
	if err != nil {
		return err
	}
	for _, put := range puts {
		put.SetLists(r.PEM)
	}
	if err := writeChanges(ctx, env, puts, o.dryRun); err != nil {
		return err
	}
	printLists(env, r)
	return nil
}

// printLists prints the new and the kept lists.
func printLists(env *cli.Env, r *crl.Result) {
	for _, note := range r.Notes {
		env.Notef("%s", note)
	}
	env.Wrote(r.Wrote...)
	for _, l := range r.Made {
		printList(env, l, "")
	}
	for _, l := range r.Kept {
		printList(env, l, ", kept")
	}
}

func printList(env *cli.Env, l *x509.RevocationList, note string) {
	until := "never"
	if !l.NextUpdate.IsZero() {
		until = l.NextUpdate.UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(env.Stdout, "%s: number %s, %d revoked, next update %s%s\n", l.Issuer, l.Number, len(l.RevokedCertificateEntries), until, note)
}

// options checks the flags.
func (o *certsCRLOptions) options(env *cli.Env) (crl.Options, error) {
	opts := crl.Options{DropUnknown: o.dropUnknown, Life: o.nextUpdate, Now: env.Now(), Rand: rand.Reader}
	opts.Reason = certs.Reason(slices.Index(reasons(), o.reason))
	switch {
	case opts.Reason != certs.Unspecified && len(o.revoke) == 0:
		return opts, cli.Usagef("--reason needs --revoke")
	case o.dryRun && len(o.contexts) == 0:
		return opts, cli.Usagef("--dry-run needs --context")
	case o.nextUpdate == 0:
		return opts, cli.Usagef("--next-update must be more than 0")
	}
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

// readTarget returns the certificate to revoke: the first one of a file, or a serial number.
func readTarget(what string) (crl.Target, error) {
	t := crl.Target{Name: what}
	data, err := files.Read(what, maxRoots)
	if errors.Is(err, fs.ErrNotExist) {
		digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(what), "0x"), ":", "")
		serial, ok := new(big.Int).SetString(digits, 16)
		if !ok || serial.Sign() <= 0 || len(digits) > maxSerial || strings.ContainsAny(what, string(os.PathSeparator)+"_") {
			return t, cli.Usagef("--revoke: %q is neither a file nor a serial number in hex", what)
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
	return t, fmt.Errorf("%s: it holds no certificate to revoke", what)
}
