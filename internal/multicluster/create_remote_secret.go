// Package multicluster joins clusters: it makes the remote secret of a cluster, writes
// it into other clusters, and rotates it. It implements the commands
// create-remote-secret, remote-secret and multicluster.
package multicluster

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// ServerAuto means that Prepare finds the address of the API server.
const ServerAuto = "auto"

// Sources of the API server's CA.
const (
	CAAuto       = "auto"
	CASA         = "sa"
	CAKubeconfig = "kubeconfig"
	CAFile       = "file"
	CASystem     = "system"
)

// Request describes a remote secret.
type Request struct {
	create.Request
	// Cluster is the id; empty means the UID of the namespace kube-system.
	Cluster mesh.ClusterID
	// Config makes the secret of a configuration cluster.
	Config bool
	Plugin *remotesecret.AuthProvider
	// Server is a URL or ServerAuto; empty means the URL of the kubeconfig.
	Server        string
	TLSServerName string
	// CA is one of the constants. CAPEM is the content of the file for CAFile.
	CA    string
	CAPEM []byte
	// Force allows ServerAuto to choose a loopback address.
	Force bool
	Now   time.Time
	// Command is the command whose flags --api-server, --tls-server-name and --ca advice
	// should name; empty means the running one.
	Command string
}

// flag returns a flag with its command for advice.
func (r *Request) flag(text string) string { return strings.TrimSpace(r.Command + " " + text) }

// Cluster is a cluster of the kubeconfig.
type Cluster struct {
	*create.APIServer
	config  *rest.Config
	context string // of the kubeconfig, empty in a pod
}

// Connect makes the client of a context's cluster.
func Connect(access *kube.Access) (*Cluster, error) {
	name := "this cluster"
	if access.Context != "" {
		name = "context " + access.Context
	}
	c, err := create.Connect(name, access.Config)
	if err != nil {
		return nil, err
	}
	return &Cluster{c, access.Config, access.Context}, nil
}

// RemoteClusters returns the clusters of all remote secrets in the namespace, sorted by
// Secret.
func (c *Cluster) RemoteClusters(ctx context.Context, namespace string) ([]remotesecret.Cluster, error) {
	secrets, err := c.Secrets(ctx, namespace)
	if err != nil {
		return nil, err
	}
	var out []remotesecret.Cluster
	for i := range secrets {
		out = append(out, remotesecret.Decode(&secrets[i])...)
	}
	return out, nil
}

// Prepared is a planned remote secret.
type Prepared struct {
	Plan *create.Plan
	ID   mesh.ClusterID
	// Server is the address of the API server in the secret.
	Server string
	// Candidates are the ranked addresses that ServerAuto considered.
	Candidates []create.Address
	Warnings   []string // for people

	request *Request
	cluster *Cluster
	tlsName string
	ca      []byte
	fromSA  bool // the CA comes from the service account
}

// Prepare plans a remote secret. It writes nothing. If it fails, the Candidates and
// Warnings may explain the error.
func (c *Cluster) Prepare(ctx context.Context, r *Request) (*Prepared, error) {
	p := &Prepared{request: r, cluster: c, ID: r.Cluster}
	if p.ID == "" {
		uid, err := c.UID(ctx)
		if err != nil {
			return nil, err
		}
		p.ID = mesh.ClusterID(uid)
	}
	// Do not cancel one when the other fails: an interrupted probe looks like an
	// unreachable API server.
	var group errgroup.Group
	var serverErr error
	group.Go(func() (err error) { p.Plan, err = c.Plan(ctx, r.Request); return err })
	group.Go(func() error { serverErr = p.findServer(ctx); return nil })
	if err := group.Wait(); err != nil {
		return nil, err // addresses do not explain it
	}
	if serverErr != nil {
		return p, fmt.Errorf("%s: %w", c.Name, serverErr)
	}
	if remotesecret.IsLoopback(p.Server) {
		p.warn("server in Kubeconfig is %s. This is likely not reachable from inside the cluster, if you're using "+
			"Kubernetes in Docker, pass %s with the container IP for the API Server", p.Server, r.flag("--api-server"))
	}
	// Find the faults that Build refuses before a token is made.
	_, err := p.build(&create.IssuedToken{Token: "-"})
	return p, err
}

func (p *Prepared) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

func (p *Prepared) findServer(ctx context.Context) error {
	r, config := p.request, p.cluster.config
	p.tlsName = r.TLSServerName
	found := create.FoundAddresses{Addresses: []create.Address{{URL: r.Server, Source: "--api-server", Chosen: true}}}
	if r.Server == "" {
		found.Addresses[0] = create.Address{URL: config.Host, Source: "kubeconfig", Chosen: true}
		p.tlsName = cmp.Or(r.TLSServerName, config.ServerName)
	}
	if config.Proxy != nil {
		p.warn("the kubeconfig reaches the API server through its proxy-url; control planes and this command connect to the server of the secret without a proxy")
	}
	if r.Server == ServerAuto {
		var err error
		if found, err = create.FindAddresses(ctx, config); err != nil {
			return err
		}
		for _, err := range found.Unread {
			p.warn("an address may be missing: %v", err)
		}
	}
	p.Server = found.Addresses[0].URL
	cas, err := p.cas(ctx, found.CAs)
	if err != nil {
		return err
	}
	if r.CA != CAAuto && r.Server != ServerAuto {
		p.ca, p.fromSA = cas[0].PEM, r.CA == CASA
		return nil
	}
	known := create.Known{CAs: cas, ServerName: r.TLSServerName, Host: config.ServerName}
	if u, err := url.Parse(config.Host); err == nil && known.Host == "" {
		known.Host = u.Hostname()
	}
	create.ProbeAddresses(ctx, found.Addresses, &known, r.Now)
	if r.Server == ServerAuto {
		create.RankAddresses(found.Addresses)
		p.Candidates = found.Addresses
		best, err := create.BestAddress(found.Addresses, r.Force)
		switch {
		case errors.Is(err, create.ErrLoopbackOnly):
			return fmt.Errorf("%w; take one with --force, or name another with %s", err, r.flag("--api-server URL"))
		case err != nil:
			return fmt.Errorf("%w; name one with %s", err, r.flag("--api-server URL"))
		}
		p.take(best)
		return nil
	}
	return p.judge(&found.Addresses[0])
}

// take uses the address, CA and name of a probed address.
func (p *Prepared) take(c *create.Address) {
	p.Server = c.URL
	p.ca, p.fromSA = c.CA.PEM, c.CA.Name == caOfAccount
	if c.TLSServerName != "" {
		p.tlsName = c.TLSServerName
		p.warn("the certificate at %s is for %s: the secret has it as tls-server-name", c.URL, c.TLSServerName)
	}
}

// judge uses the CA of an address that a person chose, and warns of faults.
func (p *Prepared) judge(c *create.Address) error {
	switch {
	case c.Unreached:
		p.warn("%s cannot be reached from here, so its CA is unknown; the secret has the CA of the "+
			"service account: %v", c.URL, c.Err)
		p.fromSA = true
		return nil
	case c.CA == nil:
		return fmt.Errorf("%s: %w; take the CA of the service account as it is with --ca sa, or name another with %s",
			c.URL, c.Err, p.request.flag("--ca file:FILE"))
	case c.Err != nil:
		p.warn("%s: %v", c.URL, c.Err)
	case c.TLSServerName != "":
		p.warn("the certificate at %s is not for that address; add %s", c.URL, p.request.flag("--tls-server-name "+c.TLSServerName))
	}
	p.ca, p.fromSA = c.CA.PEM, c.CA.Name == caOfAccount
	return nil
}

const caOfAccount = "the service account's"

// cas returns the possible CAs, the preferred one first.
func (p *Prepared) cas(ctx context.Context, published []create.ServerCA) ([]create.ServerCA, error) {
	config := rest.CopyConfig(p.cluster.config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("the kubeconfig's CA: %w", err)
	}
	account := create.ServerCA{Name: caOfAccount}
	kubeconfig := create.ServerCA{Name: "the kubeconfig's", PEM: config.CAData}
	system := create.ServerCA{Name: "those of this system"}
	switch p.request.CA {
	case CAFile:
		if !x509.NewCertPool().AppendCertsFromPEM(p.request.CAPEM) {
			return nil, errors.New("--ca: the file holds no PEM certificate")
		}
		return []create.ServerCA{{Name: "the file's", PEM: p.request.CAPEM}}, nil
	case CASystem:
		return []create.ServerCA{system}, nil
	case CAKubeconfig:
		if len(kubeconfig.PEM) == 0 {
			return nil, errors.New("--ca: the kubeconfig has none for this cluster")
		}
		return []create.ServerCA{kubeconfig}, nil
	}
	var out []create.ServerCA
	own, err := p.cluster.RootCA(ctx, p.request.Account.Namespace)
	switch {
	case err == nil:
		account.PEM = own
		out = append(out, account)
	case p.request.CA == CASA: // the token Secret also has it
		account.PEM = config.CAData
		out = append(out, account)
	}
	if p.request.CA == CASA {
		return out, nil
	}
	if len(kubeconfig.PEM) > 0 {
		out = append(out, kubeconfig)
	}
	return append(append(out, published...), system), nil
}

// Made is a complete remote secret.
type Made struct {
	*create.IssuedToken
	Secret *corev1.Secret
}

// Make writes the objects of the plan and returns the remote secret. It does not write
// the remote secret.
func (p *Prepared) Make(ctx context.Context) (*Made, error) {
	issued, err := p.cluster.Make(ctx, p.Plan)
	if err != nil {
		return nil, err
	}
	secret, err := p.build(issued)
	if err != nil {
		return nil, err
	}
	return &Made{issued, secret}, nil
}

func (p *Prepared) build(m *create.IssuedToken) (*corev1.Secret, error) {
	r := p.request
	spec := remotesecret.Spec{
		Cluster: p.ID, Namespace: r.Account.Namespace, Config: r.Config, Server: p.Server, TLSServerName: p.tlsName,
		CA: p.ca, Token: m.Token, Annotations: m.Annotations(),
	}
	if p.fromSA && len(m.CA) > 0 {
		spec.CA = m.CA
	}
	if r.Plugin != nil {
		spec.Token, spec.AuthProvider = "", r.Plugin
	}
	maps.Copy(spec.Annotations, r.Scope.Annotations())
	return remotesecret.Build(spec)
}

// Lacking describes the features that do not work because the account lacks rights.
func (m *Made) Lacking() []string {
	var order []string
	rights := map[string][]string{}
	for _, r := range m.Missing {
		if rights[r.Without] == nil {
			order = append(order, r.Without)
		}
		rights[r.Without] = append(rights[r.Without], r.String())
	}
	var out []string
	for _, without := range order {
		out = append(out, fmt.Sprintf("service account %s may not %s: %s", m.Account, strings.Join(rights[without], ", "), without))
	}
	return out
}

// CheckTargets returns an error for each cluster that the secret cannot be written into.
func (p *Prepared) CheckTargets(ctx context.Context, targets []*Cluster) error {
	if len(targets) == 0 {
		return nil
	}
	uid, err := p.cluster.UID(ctx)
	if err != nil {
		return err
	}
	secret, err := p.build(&create.IssuedToken{Token: "-"})
	if err != nil {
		return err
	}
	var errs []error
	for _, target := range targets {
		errs = append(errs, target.CheckTarget(ctx, secret, uid))
	}
	return errors.Join(errs...)
}
