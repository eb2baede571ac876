// Package server puts the control plane together: sources feed the registry,
// the registry's snapshots feed the hub, the hub's views feed the streams;
// beside them the issuer signs certificates and admin shows the state.
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
	"github.com/meshctl/meshctl/internal/server/trust"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// Defaults of Config.
const (
	defaultShutdownTimeout = 5 * time.Second
	defaultRemoteTimeout   = 30 * time.Second
)

// ClusterDir is a cluster and a directory that belongs to it.
type ClusterDir struct {
	Cluster mesh.ClusterID
	Dir     string
}

// OwnFiles are the files of the certificate of the secure port, PEM: the
// certificate, its key, and, if given, the roots that it must lead to.
type OwnFiles struct{ Cert, Key, CA string }

// Config says what a control plane serves. Addresses are host:port; an empty
// host is every interface, port 0 is any free port.
type Config struct {
	ClusterID mesh.ClusterID
	// ConfigDir is read as the cluster ClusterID, or, when it is empty, the
	// Kubernetes API of KubeAccess is. RemoteDirs are read as the others.
	ConfigDir  string
	KubeAccess *rest.Config
	RemoteDirs []ClusterDir
	// Replica is the name of this control plane among those of the cluster; no
	// other one has it. Default is a random one.
	Replica string
	// Pod is that of this control plane as namespace/name, empty outside of pods.
	// By it others reach the status pages.
	Pod string
	// SecretNamespaces are those of which Secrets are read from Kubernetes APIs,
	// for gateways; "*" is every one. Directories give all that they have.
	SecretNamespaces []string
	// SystemNamespace is that of the control plane and of the ConfigMap istio;
	// default istio-system.
	SystemNamespace string
	// KubeconfigDir, when not empty, holds the kubeconfigs of other clusters.
	// Remote secrets of the own cluster's system namespace are read when
	// KubeAccess is set.
	KubeconfigDir string
	// Allow is what kubeconfigs may do that is refused otherwise.
	Allow remotesecret.Allow
	// InPod says that the server runs in a pod: kubeconfigs must not lead to
	// loopback addresses.
	InPod bool
	// RemoteTimeout is how long serving waits for remote clusters to be read;
	// default 30 s. Later they come in when they can.
	RemoteTimeout time.Duration
	// OnClusterLost is what happens to the endpoints of a cluster that is not
	// followed any more; default mesh.Keep. Grace is how long after that
	// mesh.Drop drops them; default 5 min.
	OnClusterLost mesh.OnLost
	Grace         time.Duration
	// IgnorePolicies has the server start though its cluster has security policies
	// that are not enforced.
	IgnorePolicies bool
	// Network is that of the own cluster when its system namespace has no
	// network label.
	Network mesh.NetworkID
	// MeshID, when not empty, refuses proxies that say they belong to another.
	MeshID string
	// TrustDomain, when not empty, wins over MeshConfig's.
	TrustDomain string
	// Federated are further sources of roots, of other trust domains above all.
	// BundleWebRoots, PEM, are what certificates of bundle endpoints must lead
	// to; default: the roots of the system.
	Federated      []trust.Source
	BundleWebRoots []byte
	// BundleAddr serves the mesh's own roots as a SPIFFE bundle; empty turns it
	// off. BundleRefresh is how often others are to ask for it; default 5 min.
	BundleAddr    string
	BundleRefresh time.Duration
	// CADir holds the signing CA in the layout of Istio's cacerts. Without it
	// CASource does, and without both a self-signed CA is kept under StateDir. What
	// bundle endpoints said is kept there, too; without CA and StateDir it is not.
	CADir    string
	CASource ca.Source
	StateDir string
	// Signing says what the CA signs.
	Signing ca.Policy
	// TokenIssuers are directories with jwks.json and issuer, each trusted
	// for callers of its cluster only.
	TokenIssuers   []ClusterDir
	TokenAudiences []string

	// OIDC are issuers whose tokens are accepted besides those of clusters.
	// OIDCRoots, PEM, are what the servers of their keys must lead to; default:
	// the roots of the system.
	OIDC      []identity.OIDCRule
	OIDCRoots []byte
	// XFCCSources are the addresses of gateways whose word about their clients'
	// certificates counts.
	XFCCSources []netip.Prefix
	// Own are the files of the secure port's certificate; without them the CA
	// signs one, for istiod's names and ServingNames.
	Own          OwnFiles
	ServingNames []string

	GRPCAddr       string // plaintext xDS; empty turns it off
	SecureGRPCAddr string // TLS xDS and CA
	// MinTLS is the oldest version of TLS, such as tls.VersionTLS12; 0 is 1.3.
	MinTLS uint16
	// KeyExchanges are the key exchanges that the secure port speaks, empty for
	// all that Go does, the post-quantum one first.
	KeyExchanges   []tls.CurveID
	HTTPAddr       string // readiness, version, status
	MonitoringAddr string // metrics

	// Profiling serves runtime profiles to commands of this machine and user.
	Profiling bool
	// DebugNetwork shows status pages to callers of other machines, too.
	DebugNetwork bool
	// DebugNamespaces are those whose identities may see all status pages,
	// besides the system namespace.
	DebugNamespaces []string
	// TokenDirs are where the token for commands of this machine may be kept.
	TokenDirs []string
	// Name is what this control plane calls itself; default meshctl.
	Name string

	// Limits bound what proxies may use.
	Limits xds.Limits
	// ShutdownTimeout bounds how long calls may take to end when the server
	// stops. Default 5 s.
	ShutdownTimeout time.Duration
	// OnReady, when not nil, is called once when the server is ready.
	OnReady func()

	Version any // shown by /version
	// VersionText is shown by /version of the monitoring port, as istioctl reads
	// it: version-revision-status.
	VersionText string
	Log         *slog.Logger
	// LogLevels, when not nil, are those of Log, which may be changed while the
	// server runs.
	LogLevels *logs.Levels
	Now       func() time.Time
	Rand      io.Reader
	// LookupHost resolves the host names of gateways. Default: as this machine does.
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

// dirs are the clusters that are read, the own one first. The directory of one
// that is read from its API is empty.
func (c *Config) dirs() []ClusterDir {
	return append([]ClusterDir{{c.ClusterID, c.ConfigDir}}, c.RemoteDirs...)
}

func (c *Config) systemNamespace() string {
	return cmp.Or(c.SystemNamespace, mesh.DefaultSystemNamespace)
}

// ValidateStateDir refuses a state directory, which holds a private key, that
// lies within a directory that is read as configuration.
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

// Validate checks what can be checked without looking at the world.
func (c *Config) Validate() error {
	var errs []error
	switch {
	case c.ConfigDir == "" && c.KubeAccess == nil:
		errs = append(errs, errors.New("nothing to read: give --config-dir DIR, or --kubeconfig FILE or --context NAME of a Kubernetes API"))
	case c.ConfigDir != "" && c.KubeAccess != nil:
		errs = append(errs, errors.New("the own cluster is read from a directory or from its Kubernetes API, not from both: give --config-dir, or --kubeconfig or --context"))
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
