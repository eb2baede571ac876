package certscmd

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
)

type leafOptions struct {
	ca             string
	out            string
	csr            string
	algorithm      string
	ttl            time.Duration
	force          bool
	spiffeID       string
	trustDomain    string
	domainTyped    bool // and not set by the environment or the file for all commands
	namespace      string
	serviceAccount string
	dnsNames       []string
	ips            []string
}

func newCertsLeafCmd(env *cli.Env) *cobra.Command {
	o := &leafOptions{}
	cmd := &cobra.Command{
		Use:   "leaf",
		Short: "Make the certificate of a workload or a gateway",
		Long: `Make a key and a certificate for a workload, a virtual machine, a gateway or a
test, signed by the CA in --ca: that of a cluster, or a root. The files are
cert-chain.pem, key.pem (mode 0600) and root-cert.pem, as agents read them from
./etc/certs; with --out - the chain and the key go to standard output.

The names are those of the flags: a SPIFFE id (--spiffe-id, or --namespace and
--service-account), DNS names and IP addresses. With --csr the key stays where
it is: the request gives the public key, and nothing else of it is used.

A leaf with an ed25519 key is for other programs: Envoy accepts none from a peer.`,
		Example: `  # a workload of the mesh
  meshctl certs leaf --ca certs/cluster1 --namespace sample --service-account helloworld --out helloworld

  # an ingress gateway
  meshctl certs leaf --ca certs/cluster1 --dns shop.example.com --ttl 90d --out shop

  # a request that was made elsewhere
  meshctl certs leaf --ca certs/cluster1 --csr vm.csr --spiffe-id spiffe://cluster.local/ns/vms/sa/db --out -`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.domainTyped = cmd.Flags().Changed("trust-domain")
			return cli.NoArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	cli.DirVar(fs, &o.ca, "ca", "`Directory` of the CA that signs (required)")
	fs.StringVar(&o.out, "out", "", "Write the files into this `directory`, or - for standard output (required)")
	fs.StringVar(&o.csr, "csr", "", "Sign the key of this certificate request, a PEM `file` or - for standard input")
	bindAlgorithm(fs, &o.algorithm)
	cli.DurationVar(fs, &o.ttl, "ttl", cli.Day, "How long the certificate is valid")
	cli.ForceVar(fs, &o.force, "Overwrite files that exist")
	fs.StringVar(&o.spiffeID, "spiffe-id", "", "SPIFFE `id`")
	fs.StringVar(&o.trustDomain, "trust-domain", mesh.DefaultTrustDomain, "Trust domain of the SPIFFE id that --namespace and --service-account make")
	fs.StringVarP(&o.namespace, "namespace", "n", "", "Namespace of the workload")
	fs.StringVar(&o.serviceAccount, "service-account", "", "Service account of the workload")
	fs.StringSliceVar(&o.dnsNames, "dns", nil, "DNS `name`, which may start with *.; may be repeated")
	fs.StringSliceVar(&o.ips, "ip", nil, "IP `address`; may be repeated")
	return cmd
}

func (o *leafOptions) run(_ context.Context, env *cli.Env) error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	algorithm, err := certs.ParseAlgorithm(o.algorithm)
	if err != nil {
		return cli.Usagef("--algorithm: %w", err)
	}
	ca, err := store.LoadSigner(o.ca, env.Now())
	if err != nil {
		return err
	}
	var key crypto.Signer // nil when a request has the public one
	var pub crypto.PublicKey
	if o.csr != "" {
		pub, err = o.readCSR(env)
	} else {
		err = patiently(env, "making a key, which takes a moment", func() (err error) {
			key, err = certs.GenerateKey(algorithm)
			return err
		})
		if err == nil {
			pub = key.Public()
		}
	}
	if err != nil {
		return err
	}
	leaf, err := ca.SignNames(pub, spec, env.Now(), rand.Reader)
	if err != nil {
		return err
	}
	sayClamped(env, "leaf", leaf.NotAfter, env.Now().Add(o.ttl))
	if o.out == toStdout {
		return printLeaf(env, leaf, key, ca)
	}
	paths, err := store.SaveLeaf(o.out, leaf, key, ca, o.force)
	if err != nil {
		return err
	}
	env.Wrote(paths...)
	fmt.Fprintf(env.Stdout, "leaf: valid until %s, SHA-256 %s\n", leaf.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(leaf))
	return nil
}

func printLeaf(env *cli.Env, leaf *x509.Certificate, key crypto.Signer, ca *certs.Authority) error {
	chain := certs.EncodeCerts(append([]*x509.Certificate{leaf}, ca.Chain...)...)
	if key == nil {
		return env.WriteOut(chain)
	}
	data, err := certs.EncodeKey(key)
	if err != nil {
		return err
	}
	env.WarnSecret("a private key")
	return env.WriteOut(append(chain, data...))
}

// spec checks the flags and returns the names.
func (o *leafOptions) spec() (certs.LeafSpec, error) {
	spec := certs.LeafSpec{SPIFFEID: o.spiffeID, DNSNames: o.dnsNames, TTL: o.ttl}
	switch {
	case o.ca == "":
		return spec, cli.Usagef("--ca is required")
	case o.out == "":
		return spec, cli.Usagef("--out is required")
	case o.ttl == 0:
		return spec, cli.Usagef("--ttl must be more than 0")
	case (o.namespace == "") != (o.serviceAccount == ""):
		return spec, cli.Usagef("--namespace and --service-account go together")
	case o.domainTyped && o.namespace == "":
		return spec, cli.Usagef("--trust-domain is that of the SPIFFE id which --namespace and --service-account make: give them, too, or the whole of it with --spiffe-id")
	case o.namespace != "" && o.spiffeID != "":
		return spec, cli.Usagef("--spiffe-id is given, and --namespace, which would make another")
	case o.namespace != "":
		id := mesh.Identity{TrustDomain: o.trustDomain, Namespace: o.namespace, ServiceAccount: o.serviceAccount}
		if _, err := mesh.ParseIdentity(id.String()); err != nil {
			return spec, cli.Usagef("%w", err)
		}
		spec.SPIFFEID = id.String()
	}
	for _, s := range o.ips {
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return spec, cli.Usagef("--ip: %q is not an IP address", s)
		}
		spec.IPAddresses = append(spec.IPAddresses, addr)
	}
	for _, name := range o.dnsNames {
		if !mesh.IsDNSName(strings.TrimPrefix(name, "*.")) {
			return spec, cli.Usagef("--dns: %q is not a DNS name", name)
		}
	}
	if spec.SPIFFEID == "" && len(spec.DNSNames)+len(spec.IPAddresses) == 0 {
		return spec, cli.Usagef("a certificate needs a SPIFFE id, a DNS name or an IP address: use --spiffe-id, --namespace and --service-account, --dns or --ip")
	}
	if err := spec.Check(); err != nil {
		return spec, cli.Usagef("--spiffe-id: %w", err)
	}
	return spec, nil
}

// maxCSRFile bounds a request, in bytes.
const maxCSRFile = 64 << 10

// readCSR returns the public key of the request, and says on Stderr what of
// the request does not count.
func (o *leafOptions) readCSR(env *cli.Env) (crypto.PublicKey, error) {
	name, data, err := cli.ReadInput(env, o.csr, maxCSRFile)
	if err != nil {
		return nil, err
	}
	csr, err := certs.ParseCSR(data)
	if err != nil {
		if blocks := certs.Scan(data); len(blocks) > 0 && blocks[0].Type != "" && blocks[0].CSR == nil {
			err = fmt.Errorf("%w; it is a %s", err, strings.ToLower(blocks[0].Type))
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var ignored []string
	if s := csr.Subject.String(); s != "" {
		ignored = append(ignored, s)
	}
	for _, u := range csr.URIs {
		ignored = append(ignored, u.String())
	}
	ignored = append(ignored, csr.DNSNames...)
	for _, ip := range csr.IPAddresses {
		ignored = append(ignored, ip.String())
	}
	ignored = append(ignored, csr.EmailAddresses...)
	if len(ignored) > 0 {
		fmt.Fprintf(env.Stderr, "%s: names in the request do not count, only those of the flags: %q\n", name, strings.Join(ignored, ", "))
	}
	return csr.PublicKey, nil
}
