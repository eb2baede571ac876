// Package server puts the control plane together. Sources feed the registry, its
// snapshots feed the hub, and the hub's views feed the streams. The issuer signs
// certificates, and status pages show the state. The parts themselves are in the
// packages below.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/trust"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// Defaults of Config.
const (
	defaultShutdownTimeout = 5 * time.Second
	defaultRemoteTimeout   = 30 * time.Second
)

// ClusterDir is a cluster and the directory of its configuration or token issuer.
type ClusterDir struct {
	Cluster mesh.ClusterID
	Dir     string
}

// OwnFiles names the PEM files of the certificate of the secure port: the
// certificate, its key, and optionally the roots that it must lead to.
type OwnFiles struct{ Cert, Key, CA string }

// Config configures a control plane. Addresses are host:port. An empty host is every
// interface, port 0 is any free port.
type Config struct {
	ClusterID mesh.ClusterID
	// The own cluster ClusterID is read from ConfigDir or, if that is empty, from the
	// Kubernetes API of KubeAccess. RemoteDirs are other clusters.
	ConfigDir  string
	KubeAccess *rest.Config
	RemoteDirs []ClusterDir
	// SocketDir is the folder on the machines of proxies below which objects of directories may
	// name Unix sockets; empty for none.
	SocketDir string
	// Replica is the unique name of this control plane. Default: a random name.
	Replica string
	// Pod is the pod of this control plane as namespace/name, empty outside of pods.
	// Other control planes and commands reach the status pages through it.
	Pod string
	// SecretNamespaces are the namespaces whose Secrets are read from Kubernetes APIs,
	// for gateways; "*" means all. Secrets in directories are always read.
	SecretNamespaces []string
	// SystemNamespace is the namespace of the control plane and of the ConfigMap istio;
	// default istio-system.
	SystemNamespace string
	// KubeconfigDir, if not empty, holds the kubeconfigs of other clusters. With
	// KubeAccess, remote secrets in the own cluster's system namespace are read, too.
	KubeconfigDir string
	// Allow permits what kubeconfigs may not do by default.
	Allow remotesecret.Allow
	// InPod reports whether the server runs in a pod. Then kubeconfigs must not lead to
	// loopback addresses.
	InPod bool
	// RemoteTimeout bounds how long serving waits for remote clusters to be read;
	// default 30 s. Slower clusters join later.
	RemoteTimeout time.Duration
	// OnClusterLost decides what happens to the endpoints of a cluster that can no
	// longer be read; default mesh.Keep. mesh.Drop drops them after Grace; default
	// 5 min.
	OnClusterLost mesh.OnLost
	Grace         time.Duration
	// IgnorePolicies leaves security policies that no proxy can enforce without effect, as
	// source.Converter describes.
	IgnorePolicies bool
	// Network is the network of the own cluster if its system namespace has no network
	// label.
	Network mesh.NetworkID
	// MeshID, if not empty, makes the server refuse proxies that report another mesh.
	MeshID string
	// TrustDomain, if not empty, overrides MeshConfig.
	TrustDomain string
	// Federated are further sources of roots, mostly of other trust domains.
	// Certificates of bundle endpoints must lead to BundleWebRoots, PEM; default: the
	// roots of the system.
	Federated      []trust.Source
	BundleWebRoots []byte
	// BundleAddr serves the roots of the mesh as a SPIFFE bundle; empty turns it off.
	// BundleRefresh is the interval at which other meshes should fetch it; default
	// 5 min.
	BundleAddr    string
	BundleRefresh time.Duration
	// CADir holds the signing CA in the layout of Istio's cacerts. Without CADir,
	// CASource is used, and without both a self-signed CA is kept in StateDir. StateDir
	// also keeps the last bundles of bundle endpoints and the last key sets of
	// RequestAuthentications; if it is empty, nothing does.
	CADir    string
	CASource ca.Source
	StateDir string
	// Signing is the policy of the CA.
	Signing ca.Policy
	// TokenIssuers are directories with jwks.json and issuer. Each is trusted only for
	// callers of its cluster.
	TokenIssuers   []ClusterDir
	TokenAudiences []string

	// OIDC are further issuers of accepted tokens. The servers of their keys must lead
	// to OIDCRoots, PEM; default: the roots of the system.
	OIDC      []identity.OIDCRule
	OIDCRoots []byte
	// The key sets of RequestAuthentications are fetched at least once in KeyRefresh;
	// default 5 min. Their servers must lead to OIDCRoots, too, and must not be in
	// KeyNetworksRefused.
	KeyRefresh         time.Duration
	KeyNetworksRefused []netip.Prefix
	// XFCCSources are the addresses of gateways that may report the certificates of
	// their clients.
	XFCCSources []netip.Prefix
	// Own are the files of the secure port's certificate. Without them the CA signs a
	// certificate for istiod's names and ServingNames.
	Own          OwnFiles
	ServingNames []string

	GRPCAddr       string // plaintext xDS; empty turns it off
	SecureGRPCAddr string // TLS xDS and CA
	// MinTLS is the oldest version of TLS, such as tls.VersionTLS12; 0 means 1.3.
	MinTLS uint16
	// KeyExchanges are the key exchanges of the secure port. Empty means all of Go's,
	// with the post-quantum one first.
	KeyExchanges   []tls.CurveID
	HTTPAddr       string // readiness, version, status
	MonitoringAddr string // metrics
	HTTPSAddr      string // webhooks of the Kubernetes API; empty turns them off
	// WebhookClientRoots, PEM, are the roots of the client certificates that the callers of the
	// webhooks need. Without them, any caller is accepted.
	WebhookClientRoots []byte
	// Revision is the value of the label istio.io/rev that selects this control plane; default
	// default.
	Revision string

	// Profiling serves runtime profiles to commands of the same machine and user.
	Profiling bool
	// DebugNetwork serves status pages to callers of other machines, too.
	DebugNetwork bool
	// DebugNamespaces are the namespaces whose identities may read all status pages, in
	// addition to the system namespace.
	DebugNamespaces []string
	// TokenDirs are candidates for the directory of the token for commands of this
	// machine.
	TokenDirs []string
	// Name is the name in discovery responses; default meshctl.
	Name string

	// VirtualHostDiscovery sends virtual hosts one by one to the sidecars that support it.
	// HostsOnDemand limits them to the requested ones if the sidecar sees many services.
	VirtualHostDiscovery, HostsOnDemand bool
	// Limits bound the resources that proxies use.
	Limits xds.Limits
	// ShutdownTimeout bounds how long calls may take to end when the server stops;
	// default 5 s.
	ShutdownTimeout time.Duration
	// OnReady, if not nil, is called once when the server is ready.
	OnReady func()

	Version any // shown by /version
	// VersionText is the page /version of the monitoring port, in istioctl's form
	// version-revision-status.
	VersionText string
	Log         *slog.Logger
	// LogLevels, if not nil, are the levels of Log, which may change while the server
	// runs.
	LogLevels *logs.Levels
	Now       func() time.Time
	Rand      io.Reader
	// LookupHost resolves the host names of gateways. Default: the resolver of the
	// machine.
	LookupHost func(ctx context.Context, host string) ([]netip.Addr, error)
}

func (c *Config) lookupHost() func(context.Context, string) ([]netip.Addr, error) {
	if c.LookupHost != nil {
		return c.LookupHost
	}
	return func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
}

// dirs returns the clusters with their directories, the own cluster first. The
// directory is empty if the cluster is read from its API.
func (c *Config) dirs() []ClusterDir {
	return append([]ClusterDir{{c.ClusterID, c.ConfigDir}}, c.RemoteDirs...)
}

func (c *Config) systemNamespace() string {
	return cmp.Or(c.SystemNamespace, mesh.DefaultSystemNamespace)
}

// ValidateStateDir refuses a state directory inside of a configuration directory, as
// it holds a private key.
func (c *Config) ValidateStateDir() error {
	if c.StateDir == "" {
		return nil // nothing is kept
	}
	for _, d := range c.dirs() {
		if d.Dir == "" {
			continue
		}
		config, err := filepath.Abs(d.Dir)
		if err != nil {
			return err
		}
		state, err := filepath.Abs(c.StateDir)
		if err != nil {
			return err
		}
		if rel, err := filepath.Rel(config, state); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("state directory %s lies in the configuration directory %s: give --state-dir another directory", c.StateDir, d.Dir)
		}
	}
	return nil
}

// Validate checks the fields without reading files or connecting.
func (c *Config) Validate() error {
	var errs []error
	switch {
	case c.ConfigDir == "" && c.KubeAccess == nil:
		errs = append(errs, errors.New("nothing to read: give --config-dir DIR, or --kubeconfig FILE or --context NAME of a Kubernetes API"))
	case c.ConfigDir != "" && c.KubeAccess != nil:
		errs = append(errs, errors.New("the own cluster is read from a directory or from its Kubernetes API, not from both: give --config-dir, or --kubeconfig or --context"))
	}
	if err := source.CheckSocketDir(c.SocketDir); err != nil {
		errs = append(errs, fmt.Errorf("--socket-dir: %w", err))
	}
	if !mesh.IsDNSLabel(c.systemNamespace()) {
		errs = append(errs, fmt.Errorf("system namespace %q is not a DNS label", c.SystemNamespace))
	}
	if !c.ClusterID.Valid() {
		errs = append(errs, fmt.Errorf("cluster id %q: want letters, digits, '.', '-' and '_', at most 63", c.ClusterID))
	}
	if c.TrustDomain != "" && !mesh.IsTrustDomain(c.TrustDomain) {
		errs = append(errs, fmt.Errorf("trust domain %q is not a SPIFFE trust domain", c.TrustDomain))
	}
	if (c.Own.Cert == "") != (c.Own.Key == "") || c.Own.CA != "" && c.Own.Cert == "" {
		errs = append(errs, errors.New("--tls-cert-file and --tls-key-file belong together, and --ca-cert-file to them"))
	}
	for _, name := range c.ServingNames {
		if _, err := netip.ParseAddr(name); err != nil && !mesh.IsDNSName(name) {
			errs = append(errs, fmt.Errorf("--serving-name %q is neither a DNS name nor an IP address", name))
		}
	}
	if c.GRPCAddr == "" && c.SecureGRPCAddr == "" {
		errs = append(errs, errors.New("neither --grpc-addr nor --secure-grpc-addr is given: no proxy could connect"))
	}
	for _, ns := range c.DebugNamespaces {
		if !mesh.IsDNSLabel(ns) {
			errs = append(errs, fmt.Errorf("--debug-namespace %q is not a DNS label", ns))
		}
	}
	if c.Network != "" && !mesh.ClusterID(c.Network).Valid() {
		errs = append(errs, fmt.Errorf("network %q: want letters, digits, '.', '-' and '_', at most 63", c.Network))
	}
	seen := map[mesh.ClusterID]string{c.ClusterID: c.ConfigDir}
	for _, r := range c.RemoteDirs {
		if !r.Cluster.Valid() {
			errs = append(errs, fmt.Errorf("remote cluster id %q: want letters, digits, '.', '-' and '_', at most 63", r.Cluster))
		}
		if other, dup := seen[r.Cluster]; dup {
			errs = append(errs, fmt.Errorf("cluster %s is given twice: %s and %s", r.Cluster, other, r.Dir))
		}
		seen[r.Cluster] = r.Dir
	}
	for _, t := range c.TokenIssuers {
		if _, known := seen[t.Cluster]; !known {
			errs = append(errs, fmt.Errorf("token issuer %s is for cluster %s, which is neither --cluster-id nor a --remote-dir", t.Dir, t.Cluster))
		}
	}
	return errors.Join(errs...)
}
