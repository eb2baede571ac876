package certscmd

import (
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
	algorithm      certs.Algorithm
	ttl            time.Duration
	force          bool
	spiffeID       string
	trustDomain    string
	domainTyped    bool // not from the environment or the file
	namespace      string
	serviceAccount string
	dnsNames       []string
	ips            []string
}

func newCertsLeafCmd(env *cli.Env) *cobra.Command {
	o := &leafOptions{}
	cmd := &cobra.Command{
		Use:   "leaf",
		Short: "Create the certificate of a workload or a gateway",
		Long: `Create a key and a certificate for a workload, a virtual machine, a gateway or a test,
signed by the CA of a cluster, or the root, in --ca. The files are cert-chain.pem,
key.pem (mode 0600) and root-cert.pem, as agents read them from ./etc/certs. With --out -
the chain and the key go to standard output.

Flags set the names: a SPIFFE id (--spiffe-id, or --namespace and --service-account),
DNS names and IP addresses. With --csr, the command uses only the public key of the
request.

Do not use ed25519 for proxies: Envoy accepts no such certificate from a peer.`,
		Example: `  # Create the certificate of a workload
  meshctl certs leaf --ca certs/cluster1 --namespace sample --service-account helloworld --out helloworld

  # Create the certificate of an ingress gateway
  meshctl certs leaf --ca certs/cluster1 --dns shop.example.com --ttl 90d --out shop

  # Sign a request
  meshctl certs leaf --ca certs/cluster1 --csr vm.csr --spiffe-id spiffe://cluster.local/ns/vms/sa/db --out -`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.domainTyped = cmd.Flags().Changed("trust-domain")
			return cli.NoArgs(cmd, args)
		},
		RunE: func(*cobra.Command, []string) error { return o.run(env) },
	}
	fs := cmd.Flags()
	cli.DirVar(fs, &o.ca, "ca", "`Directory` of the signing CA (required)")
	fs.StringVar(&o.out, "out", "", "Write the files to this `directory`, or - for standard output (required)")
	fs.StringVar(&o.csr, "csr", "", "Sign the key of the certificate request in this PEM `file`, or - for standard input")
	cli.ChoiceVar(fs, &o.algorithm, "algorithm", "Key algorithm", certs.Algorithms()...)
	cli.DurationVar(fs, &o.ttl, "ttl", cli.Day, "Lifetime of the certificate")
	cli.ForceVar(fs, &o.force, "Overwrite existing files")
	fs.StringVar(&o.spiffeID, "spiffe-id", "", "SPIFFE `id`")
	fs.StringVar(&o.trustDomain, "trust-domain", mesh.DefaultTrustDomain, "Trust `domain` for --namespace and --service-account")
	fs.StringVarP(&o.namespace, "namespace", "n", "", "`Namespace` of the workload")
	fs.StringVar(&o.serviceAccount, "service-account", "", "Service `account` of the workload")
	fs.StringSliceVar(&o.dnsNames, "dns", nil, "DNS `name`, which may start with *.; may be repeated")
	fs.StringSliceVar(&o.ips, "ip", nil, "IP `address`; may be repeated")
	return cmd
}

func (o *leafOptions) run(env *cli.Env) error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	ca, err := store.LoadSigner(o.ca, env.Now())
	if err != nil {
		return err
	}
	var key crypto.Signer // nil with a request
	var pub crypto.PublicKey
	if o.csr != "" {
		pub, err = o.readCSR(env)
	} else {
		err = patiently(env, "generating a key, which takes a moment", func() (err error) {
			key, err = certs.GenerateKey(o.algorithm)
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
	noteClamped(env, "leaf", leaf.NotAfter, env.Now().Add(o.ttl))
	if o.out == toStdout {
		return printLeaf(env, leaf, key, ca)
	}
	paths, err := store.SaveLeaf(o.out, leaf, key, ca, o.force)
	if err != nil {
		return err
	}
	env.Wrote(paths...)
	printMade(env, "leaf", leaf)
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

// spec checks the flags and returns the properties of the certificate.
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
		return spec, cli.Usagef("--trust-domain needs --namespace and --service-account")
	case o.namespace != "" && o.spiffeID != "":
		return spec, cli.Usagef("--spiffe-id and --namespace: give one of them")
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
	if spec.SPIFFEID == "" && len(spec.DNSNames)+len(spec.IPAddresses) == 0 {
		return spec, cli.Usagef("a certificate needs a SPIFFE id, a DNS name or an IP address: use --spiffe-id, --namespace and --service-account, --dns or --ip")
	}
	if err := spec.Check(); err != nil {
		return spec, cli.Usagef("%w", err)
	}
	return spec, nil
}

// maxCSRFile bounds a certificate request, in bytes.
const maxCSRFile = 64 << 10

// readCSR returns the public key of the request, and prints the ignored names of the
// request to Stderr.
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
		env.Notef("%s: ignored names in the request, only flags give names: %q", name, strings.Join(ignored, ", "))
	}
	return csr.PublicKey, nil
}
