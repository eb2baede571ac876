package certscmd

import (
	"context"
	"crypto/rand"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
)

// caOptions are the flags that both kinds of CA share.
type caOptions struct {
	out          string
	algorithm    string
	ttl          time.Duration
	organization string
	commonName   string
	force        bool
}

func (o *caOptions) bind(fs *pflag.FlagSet, commonName string) {
	bindAlgorithm(fs, &o.algorithm)
	cli.DurationVar(fs, &o.ttl, "ttl", 3650*cli.Day, "How long the certificate is valid")
	fs.StringVar(&o.organization, "org", "meshctl", "Organization (O) in the certificate's subject")
	fs.StringVar(&o.commonName, "cn", commonName, "Common name (CN) in the certificate's subject")
	cli.ForceVar(fs, &o.force, "Overwrite files that exist")
}

func bindAlgorithm(fs *pflag.FlagSet, algorithm *string) {
	names := algorithmNames()
	fs.StringVar(algorithm, "algorithm", names[0], "Key algorithm, one of "+strings.Join(names, ", "))
	cli.Suggest(fs, "algorithm", names...)
}

func algorithmNames() (names []string) {
	for _, a := range certs.Algorithms() {
		names = append(names, string(a))
	}
	return names
}

// spec checks the options and turns them into a certificate's description.
func (o *caOptions) spec() (certs.CASpec, error) {
	algorithm, err := certs.ParseAlgorithm(o.algorithm)
	switch {
	case err != nil:
		return certs.CASpec{}, cli.Usagef("--algorithm: %w", err)
	case o.out == "":
		return certs.CASpec{}, cli.Usagef("--out is required")
	case o.ttl == 0:
		return certs.CASpec{}, cli.Usagef("--ttl must be more than 0")
	case o.organization == "" && o.commonName == "":
		return certs.CASpec{}, cli.Usagef("one of --org and --cn must not be empty")
	}
	return certs.CASpec{
		Algorithm:    algorithm,
		Organization: o.organization,
		CommonName:   o.commonName,
		TTL:          o.ttl,
	}, nil
}

type rootOptions struct {
	caOptions
	pathLen      int
	trustDomains []string
	dnsDomains   []string
	ipRanges     []string
}

func newCertsRootCmd(env *cli.Env) *cobra.Command {
	o := &rootOptions{}
	cmd := &cobra.Command{
		Use:   "root-ca",
		Short: "Make a root CA",
		Long: `Make a self-signed root: root-cert.pem and root-key.pem (mode 0600), or with
--out - both on standard output. Existing files are kept unless --force is given.

--constrain-trust-domain writes name constraints into the root: what is signed
below it is worth something only for SPIFFE ids of these trust domains, and for
DNS names that the control plane and its clusters have (in the trust domains, in
"svc", and localhost) or that --permit-dns adds. It is worth nothing for e-mail
addresses, and for IP addresses only in what --permit-ip names. Who steals the key of such a
root or of an intermediate cannot pass for anybody else.`,
		Example: `  meshctl certs root-ca --out certs
  meshctl certs root-ca --out certs --algorithm rsa-4096 --ttl 3650d --org example.com

  # a root that is good for one mesh and its gateways only
  meshctl certs root-ca --out certs --constrain-trust-domain cluster.local --permit-dns shop.example.com`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.out, "out", "", "Write the files into this `directory`, or - for standard output (required)")
	o.bind(fs, "Root CA")
	fs.IntVar(&o.pathLen, "path-len", -1, "How many CAs may stand between the root and a leaf; -1 is any `number`")
	fs.StringSliceVar(&o.trustDomains, "constrain-trust-domain", nil,
		"Permit only SPIFFE ids of this trust `domain`; may be repeated")
	fs.StringSliceVar(&o.dnsDomains, "permit-dns", nil,
		"With --constrain-trust-domain: permit DNS names in this `domain`, too; may be repeated")
	bindPermitIP(fs, &o.ipRanges)
	return cmd
}

func bindPermitIP(fs *pflag.FlagSet, ranges *[]string) {
	fs.StringSliceVar(ranges, "permit-ip", nil,
		"With --constrain-trust-domain: permit IP addresses in this `CIDR`, such as 10.0.0.0/8; may be repeated (default none)")
}

func (o *rootOptions) run(_ context.Context, env *cli.Env) error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	var root *certs.Authority
	err = patiently(env, "making a key, which takes a moment", func() (err error) {
		root, err = certs.NewRoot(spec, env.Now(), rand.Reader)
		return err
	})
	if err != nil {
		return err
	}
	if o.out == toStdout {
		key, err := certs.EncodeKey(root.Key)
		if err != nil {
			return err
		}
		env.WarnSecret("a private key")
		return env.WriteOut(append(certs.EncodeCerts(root.Cert), key...))
	}
	paths, err := store.SaveRoot(o.out, root, o.force)
	if err != nil {
		return err
	}
	env.Wrote(paths...)
	printCA(env.Stdout, "root", root)
	return nil
}

// maxPathLen bounds --path-len: more levels than anybody has.
const maxPathLen = 100

func (o *rootOptions) spec() (certs.CASpec, error) {
	spec, err := o.caOptions.spec()
	if err != nil {
		return spec, err
	}
	switch {
	case o.pathLen < -1 || o.pathLen > maxPathLen:
		return spec, cli.Usagef("--path-len is %d: want a number from 0 to %d, or -1 for any", o.pathLen, maxPathLen)
	case o.pathLen >= 0:
		spec.PathLen = &o.pathLen
	}
	err = constrain(&spec, o.trustDomains, o.dnsDomains, o.ipRanges)
	return spec, err
}

// constrain gives a root the name constraints of --constrain-trust-domain,
// --permit-dns and --permit-ip.
func constrain(spec *certs.CASpec, trustDomains, dnsDomains, ipRanges []string) error {
	if len(ipRanges) > 0 && len(trustDomains) == 0 {
		return cli.Usagef("--permit-ip adds to --constrain-trust-domain, which is not given")
	}
	if len(dnsDomains) > 0 && len(trustDomains) == 0 {
		return cli.Usagef("--permit-dns adds to --constrain-trust-domain, which is not given")
	}
	for _, td := range trustDomains {
		// A constraint is by the host of a URI, which is a DNS name.
		if !mesh.IsDNSName(td) {
			return cli.Usagef("--constrain-trust-domain: %q is not a trust domain that a certificate can be constrained to: use a DNS name in lower case", td)
		}
	}
	for _, domain := range dnsDomains {
		if !mesh.IsDNSName(domain) {
			return cli.Usagef("--permit-dns: %q is not a DNS name", domain)
		}
	}
	for _, text := range ipRanges {
		_, ips, err := net.ParseCIDR(text)
		if err != nil {
			return cli.Usagef("--permit-ip: %q is not a range of IP addresses such as 10.0.0.0/8", text)
		}
		spec.PermittedIPRanges = append(spec.PermittedIPRanges, ips)
	}
	if len(trustDomains) > 0 {
		spec.PermittedURIDomains = trustDomains
		spec.PermittedDNSDomains = append(append([]string{"svc", "localhost"}, trustDomains...), dnsDomains...)
	}
	return nil
}
