package certscmd

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
)

func newCertsBundleCmd(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Join, split and compare trust bundles",
		Long: `Join, split and compare trust bundles, the roots that peers trust. A bundle is PEM or
the JSON of SPIFFE bundle endpoints; the commands read both. A written bundle has each
root once, in an order that depends only on the roots, so equal bundles are equal files.`,
		Example: `  meshctl certs bundle join certs/root-cert.pem other/root-cert.pem --out roots.pem
  meshctl certs bundle diff roots.pem certs/cluster1/root-cert.pem`,
	}
	cmd.AddCommand(newBundleJoinCmd(env), newBundleSplitCmd(env), newBundleDiffCmd(env))
	return cmd
}

// maxBundleFile bounds a trust bundle, in bytes.
const maxBundleFile = 16 << 20

func readBundle(env *cli.Env, path string) (*bundle.Bundle, error) {
	name, data, err := cli.ReadInput(env, path, maxBundleFile)
	if err != nil {
		return nil, err
	}
	b, err := bundle.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// Formats of a bundle.
const (
	bundlePEM    = "pem"
	bundleSPIFFE = "spiffe"
)

type bundleJoinOptions struct {
	in       []string
	out      string
	format   string
	sequence uint64
	refresh  time.Duration
	force    bool
}

func newBundleJoinCmd(env *cli.Env) *cobra.Command {
	o := &bundleJoinOptions{}
	cmd := command(&cobra.Command{
		Use:   "join FILE...",
		Short: "Join bundles into one, or convert one",
		Long: `Write one bundle with the roots of all files (- is standard input). The bundle is sorted
and has each root once. To sort or convert a bundle, pass one file. Without --force the
command does not overwrite an existing file.

SPIFFE JSON also keeps the token keys of SPIFFE bundles, the highest sequence number and
the shortest refresh hint; PEM cannot. Bundles with different keys of one id cannot be
joined.`,
		Example: `  meshctl certs bundle join old-root.pem new-root.pem --out roots.pem

  # Convert roots for a SPIFFE bundle endpoint, and join them with others
  meshctl certs bundle join certs/root-cert.pem --format spiffe --sequence 1 --refresh-hint 5m
  curl -s https://spire.example.com/bundle | meshctl certs bundle join - certs/root-cert.pem`,
	}, func(args []string) error {
		o.in = args
		return nil
	}, func(context.Context) error { return o.run(env) })
	fs := cmd.Flags()
	fs.StringVar(&o.out, "out", toStdout, "Write the bundle to this `file`, or - for standard output")
	cli.ChoiceVar(fs, &o.format, "format", "Format of the bundle", bundlePEM, bundleSPIFFE)
	fs.Uint64Var(&o.sequence, "sequence", 0, "With --format spiffe, sequence `number` (default the highest of the files)")
	cli.ForceVar(fs, &o.force, "Overwrite an existing file")
	cli.DurationVar(fs, &o.refresh, "refresh-hint", 0, "With --format spiffe, interval at which to fetch the bundle, in whole seconds (default the shortest of the files)")
	return cmd
}

func (o *bundleJoinOptions) run(env *cli.Env) error {
	switch {
	case len(o.in) == 0:
		return cli.Usagef("name at least one file")
	case o.out == "":
		return cli.Usagef("--out is empty")
	case o.format == bundlePEM && (o.sequence > 0 || o.refresh > 0):
		return cli.Usagef("--sequence and --refresh-hint need --format spiffe")
	case o.refresh%time.Second != 0:
		return cli.Usagef("--refresh-hint is %s: want whole seconds", cli.FormatDuration(o.refresh))
	}
	var all []*bundle.Bundle
	for _, path := range o.in {
		b, err := readBundle(env, path)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	joined, err := bundle.Join(all...)
	if err != nil {
		return err
	}
	for _, r := range joined.Roots {
		if !bytes.Equal(r.RawSubject, r.RawIssuer) {
			env.Warnf("%q is no root: it is signed by %q, and openssl does not accept it as one", r.Subject, r.Issuer)
		}
	}
	data := joined.PEM()
	if o.format == bundleSPIFFE {
		if data, err = joined.SPIFFE(o.sequence, o.refresh); err != nil {
			return err
		}
	} else if ids := joined.TokenKeys(); len(ids) > 0 {
		env.Warnf("PEM cannot hold the token keys: %s", strings.Join(ids, ", "))
	}
	if o.out == toStdout {
		return env.WriteOut(data)
	}
	write := func() error { return files.Write(o.out, data, files.Public) }
	if !o.force {
		dir, name := filepath.Split(o.out)
		write = func() error {
			return files.WriteAll(filepath.Clean(dir), []files.File{{Name: name, Data: data, Mode: files.Public}})
		}
	}
	if err := write(); err != nil {
		return err
	}
	env.Wrote(o.out)
	return nil
}

type bundleSplitOptions struct {
	in    string
	out   string
	force bool
}

func newBundleSplitCmd(env *cli.Env) *cobra.Command {
	o := &bundleSplitOptions{}
	cmd := command(&cobra.Command{
		Use:   "split FILE",
		Short: "Write each root of a bundle to its own file",
		Long: `Write each root of a bundle (- is standard input) to a PEM file in --out, named after
the first bytes of its SHA-256. The command overwrites existing files only with --force.`,
		Example: "  meshctl certs bundle split roots.pem --out roots",
	}, oneArgument(&o.in, "file"), func(context.Context) error { return o.run(env) })
	fs := cmd.Flags()
	cli.DirVar(fs, &o.out, "out", "Write the files to this `directory` (required)")
	cli.ForceVar(fs, &o.force, "Overwrite existing files")
	return cmd
}

// splitName is the number of bytes of the SHA-256 in the name of a file.
const splitName = 8

func (o *bundleSplitOptions) run(env *cli.Env) error {
	if o.out == "" {
		return cli.Usagef("--out is required")
	}
	b, err := readBundle(env, o.in)
	if err != nil {
		return err
	}
	var set []files.File
	for _, c := range b.Roots {
		name := strings.ToLower(strings.ReplaceAll(certs.Fingerprint(c), ":", ""))[:2*splitName]
		set = append(set, files.File{Name: name + ".pem", Data: certs.EncodeCerts(c), Mode: files.Public})
	}
	if err := files.WriteDir(o.out, set, files.Options{Force: o.force}); err != nil {
		return err
	}
	for i, c := range b.Roots {
		fmt.Fprintf(env.Stdout, "wrote %s/%s: %s\n", o.out, set[i].Name, cli.DescribeRoot(c))
	}
	return nil
}

func newBundleDiffCmd(env *cli.Env) *cobra.Command {
	var paths []string
	return command(&cobra.Command{
		Use:   "diff A B",
		Short: "Compare two bundles",
		Long: `Show the roots that only one of two bundles has (- is standard input), with "-" for the
first bundle and "+" for the second. The exit code is 3 when there are any. Order,
duplicates and format do not matter. For two SPIFFE bundles the command also compares
the token keys.`,
		Example: "  meshctl certs bundle diff certs/cluster1/root-cert.pem certs/cluster2/root-cert.pem",
	}, func(args []string) error {
		if len(args) != 2 {
			return cli.Usagef("name two files")
		}
		if args[0] == "-" && args[1] == "-" {
			return cli.Usagef("standard input can be one of the two only")
		}
		paths = args
		return nil
	}, func(context.Context) error { return diffBundles(env, paths[0], paths[1]) })
}

func diffBundles(env *cli.Env, pathA, pathB string) error {
	a, err := readBundle(env, pathA)
	if err != nil {
		return err
	}
	b, err := readBundle(env, pathB)
	if err != nil {
		return err
	}
	rootsA, rootsB := bundle.Diff(a, b)
	keysA, keysB := bundle.DiffTokenKeys(a, b)
	show := func(sign string, roots []*x509.Certificate, keys []string) {
		for _, c := range roots {
			fmt.Fprintln(env.Stdout, sign, cli.DescribeRoot(c))
		}
		for _, name := range keys {
			fmt.Fprintln(env.Stdout, sign, name)
		}
	}
	show("-", rootsA, keysA)
	show("+", rootsB, keysB)
	if inA, inB := len(rootsA)+len(keysA), len(rootsB)+len(keysB); inA+inB > 0 {
		return cli.Findingsf("the bundles differ: %d only in %s, %d only in %s", inA, pathA, inB, pathB)
	}
	env.Notef("the bundles are equal: %s in %s and in %s", output.Plural(len(a.Roots), "root"), pathA, pathB)
	return nil
}
