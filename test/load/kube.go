package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// kube measures a mesh in a Kubernetes API.
func (b *benchmark) kube(ctx context.Context) (err error) {
	api, err := startAPI(ctx, "Kubernetes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	if err := api.fill(ctx, b.mesh, 0, b.services); err != nil {
		return err
	}
	m, err := b.kubeServer(api)
	if err != nil {
		return err
	}
	var ready, rss []float64
	for range b.rounds {
		if err := m.start(ctx); err != nil {
			return err
		}
		ready, rss = append(ready, m.ready.Seconds()), append(rss, m.atReady.rss)
		if err := m.stop(); err != nil {
			return fmt.Errorf("%w\n%s", err, m.log.String())
		}
	}
	b.report.add("Kubernetes API: start until ready", median(ready), "seconds", b.limit(0.3))
	b.report.add("Kubernetes API: RSS then", median(rss), "bytes", b.limit(80e6))
	if err := m.start(ctx); err != nil {
		return err
	}
	defer m.end(&err)
	if err := b.kubeEndpoints(ctx, api, m); err != nil {
		return err
	}
	if err := b.kubeCertificates(ctx, api, m); err != nil {
		return err
	}
	return b.remoteCluster(ctx, api, m)
}

// kubeServer returns a meshctl that reads the API. Its CA is in its state directory, as for a
// mesh in files.
func (b *benchmark) kubeServer(api *apiServer) (*meshctl, error) {
	config := filepath.Join(b.dir, "kubeconfig")
	if err := os.WriteFile(config, api.Kubeconfig(), 0o600); err != nil {
		return nil, err
	}
	m, err := newMeshctl(b.binary, b.profiles, b.dir, b.config)
	if err != nil {
		return nil, err
	}
	if _, _, err := store.LoadOrCreate(m.state, mesh.DefaultTrustDomain, time.Now(), rand.Reader); err != nil {
		return nil, err
	}
	// Few accounts ask for many certificates, so that their reviews stay warm.
	m.source = []string{"--kubeconfig", config, "--ca-dir", m.state, "--csr-limit-per-identity", "0"}
	return m, nil
}

// kubeEndpoints moves one endpoint at a time. Times begin with the request to the API server.
func (b *benchmark) kubeEndpoints(ctx context.Context, api *apiServer, m *meshctl) error {
	f, err := b.fleet(m, kind{})
	if err != nil {
		return err
	}
	defer f.close()
	f.grow(ctx, b.proxies)
	if _, err := f.all(ctx, complete); err != nil {
		return err
	}
	c, err := b.changes(ctx, "kube change", m, f, xdswire.EndpointType, func(round int) (int, error) {
		return round, api.replaceSlice(ctx, b.mesh, round, round+1)
	})
	if err != nil {
		return err
	}
	const what = "Kubernetes API: one endpoint changes, delta: "
	b.report.add(what+"half of the proxies have it", median(c.half), "seconds", b.limit(0.02))
	b.report.add(what+"the last proxy has it", median(c.last), "seconds", 0)
	b.report.add(what+"server CPU", median(c.cpu), "seconds", 0)
	return nil
}

// remoteCluster creates remote secrets of another API, each with a new service account. Then
// it applies one and waits for the services of the other cluster.
func (b *benchmark) remoteCluster(ctx context.Context, own *apiServer, m *meshctl) (err error) {
	remote, err := startAPI(ctx, "remote")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.Close()) }()
	if err := remote.fill(ctx, b.mesh, b.services, 2*b.services); err != nil {
		return err
	}
	config := filepath.Join(b.dir, "remote-kubeconfig")
	if err := os.WriteFile(config, remote.Kubeconfig(), 0o600); err != nil {
		return err
	}
	var took []float64
	var text []byte
	for round := range b.rounds {
		c := exec.CommandContext(ctx, b.binary, "create-remote-secret", "--kubeconfig", config,
			"--name", "remote", "--service-account", fmt.Sprintf("reader-%d", round))
		var stderr bytes.Buffer
		c.Stderr = &stderr
		start := time.Now()
		if text, err = c.Output(); err != nil {
			return fmt.Errorf("create-remote-secret: %w: %s", err, stderr.Bytes())
		}
		took = append(took, time.Since(start).Seconds())
	}
	b.report.add("Kubernetes API: create-remote-secret", median(took), "seconds", 0.2)
	f, err := b.fleet(m, kind{})
	if err != nil {
		return err
	}
	defer f.close()
	f.grow(ctx, 1)
	if _, err := f.all(ctx, complete); err != nil {
		return err
	}
	secret := new(corev1.Secret)
	if err := decode(string(text), secret); err != nil {
		return err
	}
	name := b.mesh.cluster(2*b.services - 1)
	f.drain()
	start := time.Now()
	if _, err := own.client.Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return err
	}
	at, err := f.all(ctx, func(e event) bool { return e.typ == xdswire.ClusterType && e.has(name) })
	if err != nil {
		return err
	}
	b.report.add(fmt.Sprintf("Kubernetes API: a proxy has %d services of another cluster after its remote secret", b.services),
		at[0].Sub(start).Seconds(), "seconds", b.limit(1))
	return nil
}

// kubeAccounts is the number of service accounts that request certificates.
const kubeAccounts = 50

// kubeCertificates measures certificates for tokens that the API server made, and that were
// reviewed just before.
func (b *benchmark) kubeCertificates(ctx context.Context, api *apiServer, m *meshctl) error {
	requests, err := signings()
	if err != nil {
		return err
	}
	tokens := make([]string, kubeAccounts)
	for i := range tokens {
		if tokens[i], err = api.token(ctx, fmt.Sprintf("ns-%d", i%10), fmt.Sprintf("account-%d", i)); err != nil {
			return err
		}
	}
	for i := range requests {
		requests[i].headers = metadata.Pairs("authorization", "Bearer "+tokens[i%len(tokens)], "clusterid", "Kubernetes")
	}
	ctx, closeAll := context.WithCancel(ctx)
	defer closeAll()
	clients, _, err := signers(ctx, m)
	if err != nil {
		return err
	}
	m.phase("kube certificates")
	defer m.phase("")
	var warm spent
	for range b.rounds {
		if _, err := sign(ctx, clients, requests, 0); err != nil { // so that reviews are cached
			return err
		}
		if err := warm.measure(ctx, m, clients, requests); err != nil {
			return err
		}
	}
	what := fmt.Sprintf("Kubernetes API: certificates for tokens reviewed just before, %d clients: ", signClients)
	b.report.add(what+"signed", median(warm.rate), perSecond, 3000)
	b.report.add(what+"server CPU each", median(warm.cpu), "seconds", 0.0003)
	return nil
}

// apiServer is a Kubernetes API.
type apiServer struct {
	*testkube.Cluster
	client *kube.Client
}

// startAPI runs an empty Kubernetes API until it is closed.
func startAPI(ctx context.Context, name string) (*apiServer, error) {
	c, err := testkube.Run(ctx, testkube.Named(name))
	if err != nil {
		return nil, err
	}
	client, err := kube.NewClient(c.Config())
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &apiServer{c, client}, nil
}

// fill writes the Services from first to before end.
func (a *apiServer) fill(ctx context.Context, m services, first, end int) error {
	namespaces := []string{mesh.DefaultSystemNamespace}
	for i := range m.namespaces {
		namespaces = append(namespaces, fmt.Sprintf("ns-%d", i))
	}
	for _, name := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := a.client.Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := first; i < end; i++ {
		g.Go(func() error {
			service, slice := new(corev1.Service), new(discoveryv1.EndpointSlice)
			if err := errors.Join(decode(m.serviceText(i), service), decode(m.sliceText(i, 0), slice)); err != nil {
				return err
			}
			service.Spec.Selector = nil // for a selector, the API would make an EndpointSlice itself
			if _, err := a.client.Services(service.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := a.client.EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

func decode(text string, object any) error { return yaml.UnmarshalStrict([]byte(text), object) }

func (a *apiServer) replaceSlice(ctx context.Context, m services, i, version int) error {
	slice := new(discoveryv1.EndpointSlice)
	if err := decode(m.sliceText(i, version), slice); err != nil {
		return err
	}
	_, err := a.client.EndpointSlices(slice.Namespace).Update(ctx, slice, metav1.UpdateOptions{})
	return err
}

// token makes a service account and a token for it.
func (a *apiServer) token(ctx context.Context, namespace, name string) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := a.client.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	made, err := a.client.CreateToken(ctx, namespace, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{testkube.Audience}},
	})
	if err != nil {
		return "", err
	}
	return made.Status.Token, nil
}
