// Package kube gives tests real Kubernetes APIs: etcd, kube-apiserver and
// kube-controller-manager as make kube builds them. There is no kubelet, so
// pods get their addresses from what tests write into their status.
//
// A cluster's processes end with the test process, however it ends, and its
// files go with them.
package kube

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

const (
	startTimeout   = 2 * time.Minute  // from start to ready: about five seconds on an idle machine
	requestTimeout = 30 * time.Second // one request of this package
	pollInterval   = 20 * time.Millisecond
)

// Issuer is the issuer of the service account tokens of every cluster, and
// one of their default audiences.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// Audience is the other default audience: the one that Istio's proxies ask for.
const Audience = "istio-ca"

// Bin returns the folder that holds etcd, kube-apiserver,
// kube-controller-manager and kubectl, and fails the test without it.
func Bin(tb testing.TB) string {
	tb.Helper()
	dir, err := bin()
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

func bin() (string, error) {
	built, err := harness.Cached("kube/built", "kube")
	return filepath.Dir(built), err
}

// Cluster is a running Kubernetes API. Its methods may be called at the same
// time, but for Stop and Restart; they fail the test when the API refuses.
type Cluster struct {
	name   string
	bin    string // of the programs
	dir    string // of everything that the cluster writes
	keeper *keeper
	token  string   // of a member of system:masters
	ca     []byte   // PEM
	flags  []string // more of them for kube-apiserver

	api, store       *port
	etcd             *process
	server, managers *process // nil while stopped

	namespaces atomic.Int64
}

// Option changes how a cluster starts.
type Option func(*Cluster)

// Named names the cluster and its context in kubeconfigs, else "cluster".
func Named(name string) Option {
	return func(c *Cluster) { c.name = name }
}

// ServerFlags gives kube-apiserver more flags, which win over the usual ones.
func ServerFlags(flags ...string) Option {
	return func(c *Cluster) { c.flags = append(c.flags, flags...) }
}

// Start runs a cluster until the test ends and returns when it is ready.
func Start(tb testing.TB, opts ...Option) *Cluster {
	tb.Helper()
	c, err := Run(tb.Context(), opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.end(tb) })
	return c
}

// StartAll is Start for clusters with these names, all at the same time.
func StartAll(tb testing.TB, names ...string) []*Cluster {
	tb.Helper()
	clusters, failed := make([]*Cluster, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { clusters[i], failed[i] = Run(tb.Context(), Named(name)) })
	}
	wg.Wait()
	for _, c := range clusters {
		if c != nil {
			tb.Cleanup(func() { c.end(tb) })
		}
	}
	if err := errors.Join(failed...); err != nil {
		tb.Fatal(err)
	}
	return clusters
}

// shared holds the clusters of Shared by name.
var shared struct {
	sync.Mutex
	clusters map[string]func() (*Cluster, error)
}

// Shared returns the one cluster with this name that all tests of the process
// share; the first call starts it. It ends with the process. Each test works
// in namespaces of its own.
func Shared(tb testing.TB, name string) *Cluster {
	tb.Helper()
	shared.Lock()
	once := shared.clusters[name]
	if once == nil {
		once = sync.OnceValues(func() (*Cluster, error) {
			return Run(context.Background(), Named(name)) // outlives the test
		})
		if shared.clusters == nil {
			shared.clusters = map[string]func() (*Cluster, error){}
		}
		shared.clusters[name] = once
	}
	shared.Unlock()
	c, err := once()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// Run starts a cluster for a program that is no test and returns when it is
// ready, which ctx bounds. It runs until Close, or until the process ends.
func Run(ctx context.Context, opts ...Option) (_ *Cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := &Cluster{name: "cluster"}
	for _, opt := range opts {
		opt(c)
	}
	if c.bin, err = bin(); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "meshctl-kube-"); err != nil {
		return nil, err
	}
	if c.keeper, err = keep(c.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start cluster %s: %w%s", c.name, err, c.logs())
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.files(); err != nil {
		return nil, err
	}
	if err := c.startStore(ctx); err != nil {
		return nil, err
	}
	if err := c.startServers(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// files makes what the servers need before they start.
func (c *Cluster) files() (err error) {
	if c.api, err = reserve(); err != nil {
		return err
	}
	if c.store, err = reserve(); err != nil {
		return err
	}
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	c.token = hex.EncodeToString(secret)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		c.write("tokens.csv", []byte(c.token+",admin,admin,system:masters\n")),
		c.write("service-accounts.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	)
}

func (c *Cluster) write(name string, data []byte) error {
	return os.WriteFile(c.path(name), data, 0o600)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) startStore(ctx context.Context) (err error) {
	c.etcd, err = c.run("etcd",
		"--data-dir", c.path("etcd"),
		"--listen-client-urls", "http://"+c.store.addr, "--advertise-client-urls", "http://"+c.store.addr,
		"--listen-peer-urls", "http://127.0.0.1:0", // nobody joins
		"--socket-reuse-port", // the port is reserved
		"--unsafe-no-fsync", "--log-level", "error")
	if err != nil {
		return err
	}
	return c.etcd.waitReady(ctx, func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.store.addr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// startServers starts kube-apiserver, then kube-controller-manager, which
// does not start without it.
func (c *Cluster) startServers(ctx context.Context) (err error) {
	_, number, err := net.SplitHostPort(c.api.addr)
	if err != nil {
		return err
	}
	c.server, err = c.run("kube-apiserver", append([]string{
		"--etcd-servers", "http://" + c.store.addr,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port", number,
		"--permit-port-sharing", // the port is reserved
		"--cert-dir", c.path("certs"),
		"--token-auth-file", c.path("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-issuer", Issuer,
		"--service-account-key-file", c.path("service-accounts.pem"),
		"--service-account-signing-key-file", c.path("service-accounts.pem"),
		"--api-audiences", Audience + "," + Issuer,
		"--service-cluster-ip-range=10.96.0.0/16",
		"--disable-admission-plugins=ServiceAccount", // or each pod would wait for its account
		"--endpoint-reconciler-type=none",            // it refuses a loopback address
		"--enable-priority-and-fairness=false",
		"--profiling=false",
	}, c.flags...)...)
	if err != nil {
		return err
	}
	if err := c.server.waitReady(ctx, func() error { return c.answers(ctx) }); err != nil {
		return err
	}
	if err := c.write("kubeconfig", c.Kubeconfig()); err != nil {
		return err
	}
	c.managers, err = c.run("kube-controller-manager",
		"--kubeconfig", c.path("kubeconfig"),
		"--service-account-private-key-file", c.path("service-accounts.pem"),
		"--root-ca-file", c.path("certs/apiserver.crt"),
		"--controllers=serviceaccount-token-controller,serviceaccount-controller,"+
			"root-ca-certificate-publisher-controller,namespace-controller,endpointslice-controller",
		"--leader-elect=false",
		"--secure-port=0", // nobody asks it
		"--profiling=false")
	return err
}

// answers reports whether the API server is ready and has made its own
// namespaces.
func (c *Cluster) answers(ctx context.Context) (err error) {
	// The server makes its certificate, which is its own authority, at start.
	if c.ca, err = os.ReadFile(c.path("certs/apiserver.crt")); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"} {
		if err := request(ctx, client, http.MethodGet, "https://"+c.api.addr+path); err != nil {
			return err
		}
	}
	return nil
}

// client returns a client with the rights of an administrator. Its connections
// are the caller's to close.
func (c *Cluster) client() (*http.Client, error) {
	config, err := dial.TLSConfig(c.ca, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	client := dial.HTTPClient(requestTimeout, config)
	client.Transport = transport.NewBearerAuthRoundTripper(c.token, client.Transport)
	return client, nil
}

// Name returns the cluster's name.
func (c *Cluster) Name() string { return c.name }

// Addr returns host:port of the API server; it stays over Stop and Restart.
func (c *Cluster) Addr() string { return c.api.addr }

// CA returns the PEM of the authority that signed the API server's certificate.
func (c *Cluster) CA() []byte { return c.ca }

// Config returns a new configuration for clients with the rights of an
// administrator and without limits of their own.
func (c *Cluster) Config() *rest.Config {
	return &rest.Config{
		Host:            "https://" + c.api.addr,
		BearerToken:     c.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		QPS:             -1,
	}
}

// Kubeconfig returns a kubeconfig with the rights of Config. Its context,
// cluster and user have the cluster's name.
func (c *Cluster) Kubeconfig() []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: https://%[2]s
    certificate-authority-data: %[3]s
users:
- name: %[1]s
  user:
    token: %[4]s
contexts:
- name: %[1]s
  context:
    cluster: %[1]s
    user: %[1]s
current-context: %[1]s
`, c.name, c.api.addr, base64.StdEncoding.EncodeToString(c.ca), c.token)
}

// KubeconfigFile writes Kubeconfig to a file of the test and returns its path.
func (c *Cluster) KubeconfigFile(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), c.name+".yaml")
	if err := os.WriteFile(path, c.Kubeconfig(), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Stop ends the API server and its controllers. What they hold stays, and
// their port stays reserved: it refuses connections.
func (c *Cluster) Stop(tb testing.TB) {
	tb.Helper()
	if err := c.stopServers(); err != nil {
		tb.Fatal(err)
	}
}

// Restart starts the API server again, with all it held, at the same address
// and with the same certificate. It stops it first if need be.
func (c *Cluster) Restart(tb testing.TB) {
	tb.Helper()
	c.Stop(tb)
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	if err := c.startServers(ctx); err != nil {
		tb.Fatalf("restart cluster %s: %v%s", c.name, err, c.logs())
	}
}

func (c *Cluster) stopServers() error {
	err := errors.Join(c.managers.stop(), c.server.stop())
	c.managers, c.server = nil, nil
	return err
}

// end ends the cluster at the end of its test. Nothing must be saved, so it kills the
// processes.
func (c *Cluster) end(tb testing.TB) {
	for _, p := range c.processes() {
		if p.ended() {
			tb.Errorf("%s of cluster %s ended before the test", p.name, c.name)
		}
	}
	if tb.Failed() {
		tb.Logf("cluster %s%s", c.name, c.logs())
	}
	if err := c.Close(); err != nil {
		tb.Errorf("end cluster %s: %v", c.name, err)
	}
}

// processes returns those that run, or should.
func (c *Cluster) processes() []*process {
	var all []*process
	for _, p := range []*process{c.managers, c.server, c.etcd} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Close ends a cluster of Run: it kills the processes and frees files and ports.
func (c *Cluster) Close() error {
	for _, p := range c.processes() {
		p.kill()
	}
	return errors.Join(c.api.free(), c.store.free(), c.keeper.release())
}

// logs returns the ends of all logs.
func (c *Cluster) logs() string {
	var all strings.Builder
	for _, p := range c.processes() {
		fmt.Fprintf(&all, "\n--- log of %s:\n%s", p.name, harness.Tail(p.log))
	}
	return all.String()
}
