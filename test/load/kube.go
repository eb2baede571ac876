package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/kube"
)

// kube measures the same where the mesh is in a Kubernetes API.
func (b *bench) kube(ctx context.Context) (err error) {
	api, end, err := startAPI(ctx, "Kubernetes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := api.fill(ctx, b.services, b.endpoints); err != nil {
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
	return b.remoteSecret(ctx, m.source[1])
}

// kubeServer is a meshctl that reads the API. Its CA is that of its state
// directory, as with a mesh in files.
func (b *bench) kubeServer(api *apiServer) (*meshctl, error) {
	config := filepath.Join(b.dir, "kubeconfig")
	if err := os.WriteFile(config, api.kubeconfig, 0o600); err != nil {
		return nil, err
	}
	m, err := newMeshctl(b.binary, b.profiles, b.dir, b.config)
	if err != nil {
		return nil, err
	}
	if _, _, err := store.LoadOrCreate(m.state, mesh.DefaultTrustDomain, time.Now(), rand.Reader); err != nil {
		return nil, err
	}
	m.source = []string{"--kubeconfig", config, "--ca-dir", m.state}
	return m, nil
}

// kubeEndpoints moves one endpoint at a time, and counts from the request to
// the API server.
func (b *bench) kubeEndpoints(ctx context.Context, api *apiServer, m *meshctl) error {
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

// remoteSecret makes remote secrets of the API, each of a service account that is
// not there yet.
func (b *bench) remoteSecret(ctx context.Context, config string) error {
	var took []float64
	for round := range b.rounds {
		c := exec.CommandContext(ctx, b.binary, "create-remote-secret", "--kubeconfig", config,
			"--name", "remote", "--service-account", fmt.Sprintf("reader-%d", round))
		var stderr bytes.Buffer
		c.Stderr = &stderr
		start := time.Now()
		if err := c.Run(); err != nil {
			return fmt.Errorf("create-remote-secret: %w: %s", err, stderr.Bytes())
		}
		took = append(took, time.Since(start).Seconds())
	}
	b.report.add("Kubernetes API: create-remote-secret", median(took), "seconds", 0.2)
	return nil
}

// apiServer is a Kubernetes API with nothing but what is written to it.
type apiServer struct {
	url, bearer string
	kubeconfig  []byte
	client      *http.Client
}

// startAPI runs a Kubernetes API until end is called.
func startAPI(ctx context.Context, name string) (_ *apiServer, end func() error, err error) {
	tb := &testless{ctx: ctx, done: make(chan struct{}), over: make(chan struct{})}
	started := make(chan *kube.Cluster, 1)
	go tb.run(func() {
		started <- kube.Start(tb, kube.Named(name))
		<-tb.done
	})
	end = sync.OnceValue(func() error {
		close(tb.done)
		<-tb.over
		return tb.failed()
	})
	var c *kube.Cluster
	select {
	case c = <-started:
	case <-tb.over:
		return nil, nil, tb.failed()
	}
	trust, err := dial.TLSConfig(c.CA(), "127.0.0.1")
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return &apiServer{
		url: "https://" + c.Addr(), bearer: c.Config().BearerToken, kubeconfig: c.Kubeconfig(),
		client: dial.HTTPClient(patience, trust),
	}, end, nil
}

// testless stands in for a test: package kube is made for tests. Only what it
// uses is there.
type testless struct {
	testing.TB
	ctx        context.Context
	done, over chan struct{}

	mu       sync.Mutex
	errs     []error
	cleanups []func()
}

// run calls what fails by ending its goroutine, then what was left to clean up.
func (t *testless) run(f func()) {
	defer close(t.over)
	defer func() {
		for _, c := range slices.Backward(t.cleanups) {
			c()
		}
	}()
	f()
}

func (t *testless) failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}

func (t *testless) Helper()                  {}
func (t *testless) Context() context.Context { return t.ctx }
func (t *testless) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }
func (t *testless) Failed() bool             { return t.failed() != nil }
func (t *testless) Logf(format string, a ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", a...)
}

func (t *testless) Errorf(format string, a ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, fmt.Errorf(format, a...))
}

func (t *testless) Fatal(a ...any) {
	t.Errorf("%s", fmt.Sprint(a...))
	runtime.Goexit()
}

func (t *testless) Fatalf(format string, a ...any) {
	t.Errorf(format, a...)
	runtime.Goexit()
}

// fill writes the mesh.
func (a *apiServer) fill(ctx context.Context, services, endpoints int) error {
	for i := range 10 {
		ns := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: ns-%d}}", i)
		if _, err := a.send(ctx, http.MethodPost, "/api/v1/namespaces", ns); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range services {
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
