// Package multicluster joins clusters: it makes the remote secret of one,
// writes it into others, and replaces it. It does what the commands
// create-remote-secret, remote-secret and multicluster say.
package multicluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
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

// ServerAuto asks for the address of the API server to be found.
const ServerAuto = "auto"

// How the CA of an API server is chosen.
const (
	CAAuto       = "auto"
	CASA         = "sa"
	CAKubeconfig = "kubeconfig"
	CAFile       = "file"
	CASystem     = "system"
)

// Request is what Prepare prepares.
type Request struct {
	create.Request
	// APIServer is the id; empty means the UID of the namespace kube-system.
	Cluster mesh.ClusterID
	// Config makes the secret of a configuration cluster.
	Config bool
	Plugin *remotesecret.AuthProvider
	// Server is a URL, ServerAuto, or empty for that of the kubeconfig.
	Server        string
	TLSServerName string
	// ServerCA is one of the constants; CAPEM is the content of the file for CAFile.
	CA    string
	CAPEM []byte
	// Force takes a loopback address, too, when the server is looked for.
	Force bool
	Now   time.Time
	// Command is the command that takes --server URL, --tls-server-name and --ca
	// file:F for the cluster; empty is the one that runs.
	Command string
}

// flag names a flag of create-remote-secret in advice.
func (r *Request) flag(text string) string { return strings.TrimSpace(r.Command + " " + text) }

// APIServer is one cluster that the kubeconfig knows.
type Cluster struct {
	*create.APIServer
	config  *rest.Config
	context string // of the kubeconfig, empty in a pod
}

// Connect makes the clients of the cluster of a context.
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

// RemoteClusters are the clusters that the control plane of this one is told to
// read, by the name of their Secret.
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

// Prepared is what was found out before anything is written.
type Prepared struct {
	Plan *create.Plan
	// ID is that of the cluster.
	ID mesh.ClusterID
	// Addresses are the addresses that were looked at, in their rank; empty
	// when none had to be.
	Candidates []create.Address
	// Warnings are for the person.
	Warnings []string

	request *Request
	cluster *Cluster
	server  string
	tlsName string
	ca      []byte
	fromSA  bool // the CA is that of the account
}

// Prepare finds out what to write. It writes nothing. With an error there may
// be Candidates and Warnings that help to understand it.
func (c *Cluster) Prepare(ctx context.Context, r *Request) (*Prepared, error) {
	p := &Prepared{request: r, cluster: c, ID: r.Cluster}
	if p.ID == "" {
		uid, err := c.UID(ctx)
		if err != nil {
			return nil, err
		}
		p.ID = mesh.ClusterID(uid)
	}
	// Neither is cancelled when the other fails: what was interrupted would be
	// taken for an API server that cannot be reached.
	var group errgroup.Group
	var serverErr error
	group.Go(func() (err error) { p.Plan, err = c.Plan(ctx, r.Request); return err })
	group.Go(func() error { serverErr = p.findServer(ctx); return nil })
	if err := group.Wait(); err != nil {
		return nil, err // addresses do not help
	}
	if serverErr != nil {
		return p, fmt.Errorf("%s: %w", c.Name, serverErr)
	}
	if create.IsLoopback(p.server) {
		p.warn("server in Kubeconfig is %s. This is likely not reachable from inside the cluster, if you're using "+
			"Kubernetes in Docker, pass %s with the container IP for the API Server", p.server, r.flag("--server"))
	}
	// What Build would refuse must not be found out after a token was made.
	_, err := p.build(&create.IssuedToken{Token: "-"})
	return p, err
}

func (p *Prepared) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// Server is the address that the secret will name.
func (p *Prepared) Server() string { return p.server }

func (p *Prepared) findServer(ctx context.Context) error {
	r, config := p.request, p.cluster.config
	p.tlsName = r.TLSServerName
	found := create.FoundAddresses{Addresses: []create.Address{{URL: r.Server, Source: "--server"}}}
	if r.Server == "" {
		found.Addresses[0] = create.Address{URL: config.Host, Source: "kubeconfig"}
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
	p.server = found.Addresses[0].URL
	cas, err := p.cas(ctx, found.CAs)
	if err != nil {
		return err
	}
	if r.CA != CAAuto && r.Server != ServerAuto {
		p.ca, p.fromSA = cas[0].PEM, r.CA == CASA
		return nil
	}
	create.ProbeAddresses(ctx, found.Addresses, cas, r.TLSServerName, r.Now)
	if r.Server == ServerAuto {
		create.RankAddresses(found.Addresses)
		p.Candidates = found.Addresses
		best, err := create.BestAddress(found.Addresses, r.Force)
		switch {
		case errors.Is(err, create.ErrLoopbackOnly):
			return fmt.Errorf("%w; take one with --force, or name another with %s", err, r.flag("--server URL"))
		case err != nil:
			return fmt.Errorf("%w; name one with %s", err, r.flag("--server URL"))
		}
		p.take(best)
		return nil
	}
	return p.judge(&found.Addresses[0])
}

// take uses what was found at an address.
func (p *Prepared) take(c *create.Address) {
	p.server = c.URL
	p.ca, p.fromSA = c.CA.PEM, c.CA.Name == caOfAccount
	if c.TLSServerName != "" {
		p.tlsName = c.TLSServerName
		p.warn("the certificate at %s is for %s: the secret says so by tls-server-name", c.URL, c.TLSServerName)
	}
}

// judge takes an address that the person chose as given, and says what is
// wrong with it.
func (p *Prepared) judge(c *create.Address) error {
	switch {
	case c.Unreached:
		p.warn("%s cannot be reached from here, so nobody knows which CA it shows; the secret has that of the "+
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

// cas are the CAs to choose from, the first that fits being taken.
func (p *Prepared) cas(ctx context.Context, published []create.ServerCA) ([]create.ServerCA, error) {
	config := rest.CopyConfig(p.cluster.config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("the kubeconfig's CA: %w", err)
	}
	switch p.request.CA {
	case CAFile:
		if !x509.NewCertPool().AppendCertsFromPEM(p.request.CAPEM) {
			return nil, errors.New("--ca: the file holds no PEM certificate")
		}
		return []create.ServerCA{{Name: "the file's", PEM: p.request.CAPEM}}, nil
	case CASystem:
		return []create.ServerCA{{Name: "those of this system"}}, nil
	case CAKubeconfig:
		if len(config.CAData) == 0 {
			return nil, errors.New("--ca: the kubeconfig has none for this cluster")
		}
		return []create.ServerCA{{Name: "the kubeconfig's", PEM: config.CAData}}, nil
	}
	var out []create.ServerCA
	own, err := p.cluster.RootCA(ctx, p.request.Account.Namespace)
	if err != nil && p.request.CA == CASA {
		// The token Secret has it, too.
		return []create.ServerCA{{Name: caOfAccount, PEM: config.CAData}}, nil
	}
	if err == nil {
		out = append(out, create.ServerCA{Name: caOfAccount, PEM: own})
	}
	if p.request.CA == CASA {
		return out, nil
	}
	if len(config.CAData) > 0 {
		out = append(out, create.ServerCA{Name: "the kubeconfig's", PEM: config.CAData})
	}
	return append(append(out, published...), create.ServerCA{Name: "those of this system"}), nil
}

// Made is a remote secret that can be used.
type Made struct {
	*create.IssuedToken
	Secret *corev1.Secret
}

// Make writes what is prepared in the cluster and returns the remote secret,
// which is written nowhere yet.
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
		Cluster: p.ID, Namespace: r.Account.Namespace, Config: r.Config, Server: p.server, TLSServerName: p.tlsName,
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

// Lacking are the features that do not work as the account lacks rights, each
// once, with the rights.
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
