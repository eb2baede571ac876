package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/kube"
)

// kube measures a mesh in a Kubernetes API.
func (b *benchmark) kube(ctx context.Context) (err error) {
	api, err := startAPI(ctx, "Kubernetes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	if err := api.fill(ctx, 0, b.services, b.endpoints); err != nil {
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
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, m.log.String())
		}
		err = errors.Join(err, m.stop())
	}()
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
	m.phase("kube change")
	defer m.phase("")
	var p50, last, cpu []float64
	for round := range b.rounds {
		before, err := m.settled(ctx)
		if err != nil {
			return err
		}
		name := clusterName(round)
		f.drain()
		start := time.Now()
		if err := api.replaceSlice(ctx, round, b.endpoints, round+1); err != nil {
			return err
		}
		at, err := f.all(ctx, func(e event) bool { return e.typ == xdswire.EndpointType && e.has(name) })
		if err != nil {
			return err
		}
		after, err := m.settled(ctx)
		if err != nil {
			return err
		}
		slices.SortFunc(at, time.Time.Compare)
		p50 = append(p50, at[len(at)/2].Sub(start).Seconds())
		last = append(last, at[len(at)-1].Sub(start).Seconds())
		cpu = append(cpu, after.cpu-before.cpu)
	}
	const what = "Kubernetes API: one endpoint changes, delta: "
	b.report.add(what+"half of the proxies have it", median(p50), "seconds", b.limit(0.02))
	b.report.add(what+"the last proxy has it", median(last), "seconds", 0)
	b.report.add(what+"server CPU", median(cpu), "seconds", 0)
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
	if err := remote.fill(ctx, b.services, b.services, b.endpoints); err != nil {
		return err
	}
	config := filepath.Join(b.dir, "remote-kubeconfig")
	if err := os.WriteFile(config, remote.Kubeconfig(), 0o600); err != nil {
		return err
	}
	var took []float64
	var secret []byte
	for round := range b.rounds {
		c := exec.CommandContext(ctx, b.binary, "create-remote-secret", "--kubeconfig", config,
			"--name", "remote", "--service-account", fmt.Sprintf("reader-%d", round))
		var stderr bytes.Buffer
		c.Stderr = &stderr
		start := time.Now()
		if secret, err = c.Output(); err != nil {
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
	name := clusterName(2*b.services - 1)
	f.drain()
	start := time.Now()
	if _, err := own.send(ctx, http.MethodPost, "/api/v1/namespaces/istio-system/secrets", string(secret)); err != nil {
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
	config, err := serverTrust(m)
	if err != nil {
		return err
	}
	clients, closeAll, err := signers(ctx, m, config)
	if err != nil {
		return err
	}
	defer closeAll()
	m.phase("kube certificates")
	defer m.phase("")
	var warm spent
	for range b.rounds {
		if err := sign(ctx, clients, requests); err != nil { // so that reviews are cached
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

// apiServer is an empty Kubernetes API.
type apiServer struct {
	*kube.Cluster
	url, bearer string
	client      *http.Client
}

// startAPI runs a Kubernetes API until it is closed.
func startAPI(ctx context.Context, name string) (_ *apiServer, err error) {
	c, err := kube.Run(ctx, kube.Named(name))
	if err != nil {
		return nil, err
	}
	trust, err := dial.TLSConfig(c.CA(), "127.0.0.1")
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &apiServer{
		Cluster: c, url: "https://" + c.Addr(), bearer: c.Config().BearerToken, client: dial.HTTPClient(patience, trust),
	}, nil
}

// fill writes a mesh of services, numbered from first.
func (a *apiServer) fill(ctx context.Context, first, services, endpoints int) error {
	namespaces := []string{"istio-system"}
	for i := range 10 {
		namespaces = append(namespaces, fmt.Sprintf("ns-%d", i))
	}
	for _, ns := range namespaces {
		text := "{apiVersion: v1, kind: Namespace, metadata: {name: " + ns + "}}"
		if _, err := a.send(ctx, http.MethodPost, "/api/v1/namespaces", text); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := first; i < first+services; i++ {
		g.Go(func() error {
			ns := fmt.Sprintf("ns-%d", i%10)
			if _, err := a.send(ctx, http.MethodPost, "/api/v1/namespaces/"+ns+"/services", serviceText(i, "")); err != nil {
				return err
			}
			_, err := a.send(ctx, http.MethodPost, "/apis/discovery.k8s.io/v1/namespaces/"+ns+"/endpointslices", sliceText(i, endpoints, 0))
			return err
		})
	}
	return g.Wait()
}

func (a *apiServer) replaceSlice(ctx context.Context, i, endpoints, version int) error {
	path := fmt.Sprintf("/apis/discovery.k8s.io/v1/namespaces/ns-%d/endpointslices/svc-%d-abc", i%10, i)
	_, err := a.send(ctx, http.MethodPut, path, sliceText(i, endpoints, version))
	return err
}

// token makes a service account and a token for it.
func (a *apiServer) token(ctx context.Context, namespace, account string) (string, error) {
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	text := "{apiVersion: v1, kind: ServiceAccount, metadata: {name: " + account + "}}"
	if _, err := a.send(ctx, http.MethodPost, accounts, text); err != nil {
		return "", err
	}
	text = "{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, spec: {audiences: [" + kube.Audience + "], expirationSeconds: 3600}}"
	body, err := a.send(ctx, http.MethodPost, accounts+"/"+account+"/token", text)
	if err != nil {
		return "", err
	}
	var answer struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	err = json.Unmarshal(body, &answer)
	return answer.Status.Token, err
}

// send sends an object as YAML.
func (a *apiServer) send(ctx context.Context, method, path, object string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewBufferString(object))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+a.bearer)
	req.Header.Set("Content-Type", "application/yaml")
	req.Header.Set("Accept", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, body)
	}
	return body, err
}
