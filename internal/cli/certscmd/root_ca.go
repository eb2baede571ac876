package certscmd

import (
	"crypto/rand"
	"net"
	"slices"
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
	algorithm    certs.Algorithm
	ttl          time.Duration
	organization string
	commonName   string
	force        bool
}

func (o *caOptions) bind(fs *pflag.FlagSet, commonName string) {
	cli.ChoiceVar(fs, &o.algorithm, "algorithm", "Key algorithm", certs.Algorithms()...)
	cli.DurationVar(fs, &o.ttl, "ttl", 3650*cli.Day, "Lifetime of the certificate")
	fs.StringVar(&o.organization, "org", "meshctl", "`Organization` (O) in the subject of the certificate")
	fs.StringVar(&o.commonName, "cn", commonName, "Common `name` (CN) in the subject of the certificate")
	cli.ForceVar(fs, &o.force, "Overwrite existing files")
}

// spec checks the flags and returns the properties of the certificate.
func (o *caOptions) spec() (certs.CASpec, error) {
	switch {
	case o.out == "":
		return certs.CASpec{}, cli.Usagef("--out is required")
	case o.ttl == 0:
		return certs.CASpec{}, cli.Usagef("--ttl must be more than 0")
	case o.organization == "" && o.commonName == "":
		return certs.CASpec{}, cli.Usagef("one of --org and --cn must not be empty")
	}
	return certs.CASpec{
		Algorithm:    o.algorithm,
		Organization: o.organization,
		CommonName:   o.commonName,
		TTL:          o.ttl,
	}, nil
}

type rootOptions struct {
	caOptions
	pathLen     int
	constraints constraintFlags
}

func newCertsRootCmd(env *cli.Env) *cobra.Command {
	o := &rootOptions{}
	cmd := &cobra.Command{
		Use:   "root-ca",
		Short: "Create a root CA",
		Long: `Create a self-signed root: root-cert.pem and root-key.pem (mode 0600), or with --out -
both on standard output. The command overwrites existing files only with --force.

--constrain-trust-domain adds name constraints to the root, so that a stolen key of the
root or of an intermediate cannot sign for other names. The constraints permit SPIFFE ids
of these trust domains, DNS names in these domains, in "svc" and in --permit-dns,
localhost, and IP addresses in --permit-ip. They permit no e-mail addresses.`,
		Example: `  meshctl certs root-ca --out certs
  meshctl certs root-ca --out certs --algorithm rsa-4096 --ttl 3650d --org example.com

  # Create a root for only one mesh and its gateways
  meshctl certs root-ca --out certs --constrain-trust-domain cluster.local --permit-dns shop.example.com`,
		RunE: func(*cobra.Command, []string) error { return o.run(env) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.out, "out", "", "Write the files to this `directory`, or - for standard output (required)")
	o.bind(fs, "Root CA")
	cli.NumberVar(fs, &o.pathLen, "path-len", -1, -1, maxPathLen, "`Number` of CAs between the root and a leaf; -1 for any")
	o.constraints.bind(fs, "")
	return cmd
}

func (o *rootOptions) run(env *cli.Env) error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	var root *certs.Authority
	err = patiently(env, "generating a key, which takes a moment", func() (err error) {
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
	printMade(env, "root", root.Cert)
	return nil
}

// maxPathLen bounds --path-len, far above any real hierarchy.
const maxPathLen = 100

func (o *rootOptions) spec() (certs.CASpec, error) {
	spec, err := o.caOptions.spec()
	if err != nil {
		return spec, err
	}
	if o.pathLen >= 0 {
		spec.PathLen = &o.pathLen
	}
	return spec, o.constraints.apply(&spec)
}

// constraintFlags hold the flags for the name constraints of a root.
type constraintFlags struct{ trustDomains, dnsDomains, ipRanges []string }

// bind defines the flags. note is added to the first usage.
func (o *constraintFlags) bind(fs *pflag.FlagSet, note string) {
	fs.StringSliceVar(&o.trustDomains, "constrain-trust-domain", nil, "Permit only SPIFFE ids of this trust `domain`; may be repeated"+note)
	fs.StringSliceVar(&o.dnsDomains, "permit-dns", nil, "With --constrain-trust-domain, permit also DNS names in this `domain`; may be repeated")
	fs.StringSliceVar(&o.ipRanges, "permit-ip", nil, "With --constrain-trust-domain, permit also IP addresses in this `CIDR`, such as 10.0.0.0/8; may be repeated")
}

func (o *constraintFlags) apply(spec *certs.CASpec) error {
	if len(o.trustDomains) == 0 {
		switch {
		case len(o.ipRanges) > 0:
			return cli.Usagef("--permit-ip needs --constrain-trust-domain")
		case len(o.dnsDomains) > 0:
			return cli.Usagef("--permit-dns needs --constrain-trust-domain")
		}
		return nil
	}
	for _, td := range o.trustDomains {
		// The constraint applies to the host of a URI, a DNS name.
		if !mesh.IsDNSName(td) {
			return cli.Usagef("--constrain-trust-domain: a certificate cannot be constrained to trust domain %q: use a DNS name in lower case", td)
		}
	}
	for _, domain := range o.dnsDomains {
		if !mesh.IsDNSName(domain) {
			return cli.Usagef("--permit-dns: %q is not a DNS name", domain)
		}
	}
	for _, text := range o.ipRanges {
		_, ips, err := net.ParseCIDR(text)
		if err != nil {
			return cli.Usagef("--permit-ip: %q is not a range of IP addresses such as 10.0.0.0/8", text)
		}
		spec.PermittedIPRanges = append(spec.PermittedIPRanges, ips)
	}
	spec.PermittedURIDomains = o.trustDomains
	spec.PermittedDNSDomains = slices.Concat([]string{"svc", "localhost"}, o.trustDomains, o.dnsDomains)
	return nil
}
