package pscmd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/replicas"
)

// xdsFlags hold the flags for control planes over xDS and for the identity of the caller.
type xdsFlags struct {
	addresses []string
	certDir   string
	rootCA    string
	authority string
	insecure  bool
}

func (f *xdsFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.addresses, "xds-address", nil, "Ask control planes, also of Istio, over xDS at this `host:port` with TLS, such as port 15012, instead of --server; may be repeated")
	fs.StringVar(&f.certDir, "cert-dir", "", "With --xds-address, `directory` with cert-chain.pem and key.pem of the caller, and root-cert.pem, as meshctl certs leaf writes it")
	fs.StringVar(&f.rootCA, "root-ca", "", "With --xds-address, `file` with the roots for the certificate of the control plane (default root-cert.pem of --cert-dir, else the ConfigMap istio-ca-root-cert of the cluster)")
	fs.StringVar(&f.authority, "authority", "", "With --xds-address, `name` in the certificate of the control plane, such as istiod.istio-system.svc (default the host)")
	fs.BoolVar(&f.insecure, "insecure", false, "With --xds-address, do not verify the control plane; any server at the address gets the token")
	cli.MarkWeakening(fs, "insecure")
}

// xdsFlagNames lists the flags that need --xds-address.
func xdsFlagNames() []string { return []string{"cert-dir", "root-ca", "authority", "insecure"} }

// maxCerts bounds a file of certificates, in bytes.
const maxCerts = 1 << 20

// find returns the control planes of --xds-address. The caller closes them.
func (f *xdsFlags) find(ctx context.Context, env *cli.Env, r *cli.ReplicaFlags) ([]*replicas.Replica, error) {
	if !mesh.IsDNSLabel(r.System) {
		return nil, cli.Usagef("namespace %q is not a DNS label", r.System)
	}
	if f.insecure && f.rootCA != "" {
		return nil, cli.Usagef("--insecure and --root-ca: give one of them")
	}
	own, err := f.certificate()
	if err != nil {
		return nil, err
	}
	access := sync.OnceValues(func() (*kube.Access, error) { return kube.Load(r.Kube.Options(env, r.Contexts.First())) })
	token, err := f.token(ctx, env, r, access, own)
	if err != nil {
		return nil, err
	}
	roots, err := f.roots(ctx, r, access)
	if err != nil {
		return nil, err
	}
	var out []*replicas.Replica
	for _, address := range f.addresses {
		client, err := f.client(env, address, roots, own, token, r.Timeout)
		if err != nil {
			cli.CloseReplicas(out)
			return nil, cli.Usagef("--xds-address %w", err)
		}
		out = append(out, &replicas.Replica{Name: address, Via: address + " over xDS", Pages: xdsPages{client}})
	}
	return out, nil
}

func (f *xdsFlags) client(env *cli.Env, address string, roots []byte, own []tls.Certificate, token string, timeout time.Duration) (*replicas.XDSClient, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return nil, fmt.Errorf("%q: want host:port", address)
	}
	if f.authority != "" {
		host = f.authority
	}
	config := dial.UnverifiedTLSConfig(host, own...)
	if !f.insecure {
		if config, err = dial.TLSConfig(roots, host, own...); err != nil {
			return nil, fmt.Errorf("%s: %w", address, err)
		}
	}
	return replicas.NewXDS(replicas.XDSConfig{Address: address, TLS: config, Token: token, Timeout: timeout, Now: env.Now})
}

// certificate returns the certificate of --cert-dir, if any.
func (f *xdsFlags) certificate() ([]tls.Certificate, error) {
	if f.certDir == "" {
		return nil, nil
	}
	chain, err := files.Read(filepath.Join(f.certDir, "cert-chain.pem"), maxCerts)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	key, err := files.ReadSecret(filepath.Join(f.certDir, "key.pem"), maxCerts)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir %s: %w", f.certDir, err)
	}
	return []tls.Certificate{pair}, nil
}

// token returns the token of the file, none with a certificate, else a new one of the
// cluster.
func (f *xdsFlags) token(ctx context.Context, env *cli.Env, r *cli.ReplicaFlags, access func() (*kube.Access, error), own []tls.Certificate) (string, error) {
	switch {
	case r.Token.File != "":
		return r.Token.Read(env)
	case len(own) > 0:
		return "", nil
	}
	cluster, err := access()
	if errors.Is(err, kube.ErrNoAccess) {
		return "", cli.Usagef("--xds-address needs an identity: give --cert-dir, --token-file or a kubeconfig: %w", err)
	}
	if err != nil {
		return "", err
	}
	return replicas.Mint(ctx, cluster.Config, r.System)
}

// roots returns the roots that verify the control plane, nil with --insecure.
func (f *xdsFlags) roots(ctx context.Context, r *cli.ReplicaFlags, access func() (*kube.Access, error)) ([]byte, error) {
	if f.insecure {
		return nil, nil
	}
	if f.rootCA != "" {
		roots, err := files.Read(f.rootCA, maxCerts)
		if err != nil {
			return nil, fmt.Errorf("--root-ca: %w", err)
		}
		return roots, nil
	}
	if f.certDir != "" {
		roots, err := files.Read(filepath.Join(f.certDir, "root-cert.pem"), maxCerts)
		if err == nil {
			return roots, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		}
	}
	cluster, err := access()
	if errors.Is(err, kube.ErrNoAccess) {
		return nil, cli.Usagef("--xds-address needs the roots of the control plane: give --root-ca, --cert-dir or a kubeconfig: %w", err)
	}
	if err != nil {
		return nil, err
	}
	roots, err := replicas.MeshRoots(ctx, cluster.Config, r.System)
	if err != nil {
		return nil, fmt.Errorf("%w; give a file with --root-ca", err)
	}
	return roots, nil
}

// xdsPages reads status pages over xDS.
type xdsPages struct{ *replicas.XDSClient }

// Page implements replicas.Pages.
func (p xdsPages) Page(ctx context.Context, page string) (body []byte, err error) {
	if page == "xds/proxies" {
		report, err := p.Proxies(ctx)
		if err != nil {
			return nil, untrusted(err)
		}
		return json.Marshal(report)
	}
	body, err = p.XDSClient.Page(ctx, page)
	return body, untrusted(err)
}

// untrusted adds advice to the error for a control plane that is not trusted.
func untrusted(err error) error {
	if e, ok := errors.AsType[*replicas.XDSError](err); ok && e.Untrusted() {
		return fmt.Errorf("%w; give its roots with --root-ca, the name in its certificate with --authority", err)
	}
	return err
}
