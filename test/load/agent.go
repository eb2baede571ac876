package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/credentials"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// The shape of the measurements of an agent.
const (
	agentStarts    = 5
	agentRelease   = 65 * time.Second // in this time an agent returns the memory that it does not use
	relayedPushes  = 300
	pushesASecond  = 100
	relayedSeconds = 10
	dnsClients     = 8
	dnsSeconds     = 5
	dnsLimit       = 40_000 // answers a second and core; the latency is measured at half of it
)

// agent measures meshctl agent with 1,000 Services. A program that does nothing stands for Envoy:
// this process opens Envoy's stream to the agent. Both share the processors with the server.
func (b *benchmark) agent(ctx context.Context) (err error) {
	tokens, err := newTokenKeys()
	if err != nil {
		return err
	}
	issuerDir := filepath.Join(b.dir, "agent-issuer")
	if err := tokens.save(issuerDir); err != nil {
		return err
	}
	m, err := b.serve(ctx, "--token-issuer", "Kubernetes="+issuerDir)
	if err != nil {
		return err
	}
	defer m.end(&err)
	if err := b.live(ctx, m, tokens); err != nil {
		return err
	}
	sleeps := filepath.Join(b.dir, "envoy")
	if err := os.WriteFile(sleeps, []byte("#!/bin/sh\nexec sleep 1000000\n"), 0o700); err != nil {
		return err
	}
	a, err := newAgent(b, m, tokens, "a", sleeps)
	if err != nil {
		return err
	}
	var first []float64
	for range agentStarts {
		if a.process != nil {
			if err := a.stop(); err != nil {
				return fmt.Errorf("%w\nthe log of the agent:\n%s", err, a.log.String())
			}
		}
		took, err := a.start(ctx)
		if err != nil {
			return err
		}
		first = append(first, took.Seconds())
	}
	defer a.end(&err)
	b.report.add("agent: start until the first certificate", median(first), "seconds", 0.06)
	alone, err := a.settled(ctx)
	if err != nil {
		return err
	}
	b.report.add("agent: RSS then", alone.rss, "bytes", 0)
	if err := b.relayed(ctx, m, a); err != nil {
		return err
	}
	return b.names(ctx, a)
}

// live measures the time from the start of an agent until its real Envoy is ready.
func (b *benchmark) live(ctx context.Context, m *meshctl, tokens tokenKeys) (err error) {
	envoy, err := filepath.Abs(b.envoy)
	if err != nil {
		return err
	}
	a, err := newAgent(b, m, tokens, "l", envoy)
	if err != nil {
		return err
	}
	a.env = []string{"ISTIO_META_INTERCEPTION_MODE=NONE"} // no listeners at addresses of other programs
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	var took []float64
	for range agentStarts {
		began := time.Now()
		if _, err := a.start(ctx); err != nil {
			return err
		}
		for ready := false; !ready; {
			if resp, err := client.Get("http://" + a.readiness + "/healthz/ready"); err == nil {
				ready = resp.StatusCode == http.StatusOK
				_ = resp.Body.Close()
			}
			if time.Since(began) > patience {
				return errors.Join(fmt.Errorf("no ready Envoy after %v:\n%s", patience, a.log.String()), a.stop())
			}
			if err := pause(ctx, 5*time.Millisecond); err != nil {
				return errors.Join(err, a.stop())
			}
		}
		took = append(took, time.Since(began).Seconds())
		if err := a.stop(); err != nil {
			return fmt.Errorf("%w\nthe log of the agent:\n%s", err, a.log.String())
		}
	}
	b.report.add(fmt.Sprintf("agent: start until Envoy with %d Services is ready", b.services), median(took), "seconds", 1.5)
	return nil
}

// agentProcess is an agent under load.
type agentProcess struct {
	*process
	binary, dir, dns, readiness string
	args, env                   []string
}

// newAgent prepares an agent of the server's mesh in the namespace of the first proxy, with a directory
// and an Envoy.
func newAgent(b *benchmark, m *meshctl, tokens tokenKeys, dir, envoy string) (*agentProcess, error) {
	ports, err := harness.FindAddrs(5)
	if err != nil {
		return nil, err
	}
	port := func(i int) string { _, p, _ := net.SplitHostPort(ports[i]); return p }
	// The path of a socket is short.
	a := &agentProcess{binary: b.binary, dir: filepath.Join(b.dir, dir), dns: ports[4], readiness: ports[2]}
	if err := os.Mkdir(a.dir, 0o700); err != nil {
		return nil, err
	}
	ca, _, err := store.LoadOrCreate(m.state, mesh.DefaultTrustDomain, time.Now(), nil)
	if err != nil {
		return nil, err
	}
	token, err := tokens.sign(jose.ES256, loadNamespace(0), "default", time.Now())
	if err != nil {
		return nil, err
	}
	file := func(name string) string { return filepath.Join(a.dir, name) }
	if err := errors.Join(
		os.WriteFile(file("root.pem"), certs.EncodeCerts(ca.Roots...), 0o600),
		os.WriteFile(file("token"), []byte(token), 0o600),
	); err != nil {
		return nil, err
	}
	a.args = []string{
		"agent", "--pod-name", "client", "--pod-namespace", loadNamespace(0), "--service-account", "default", "--instance-ip", "10.200.0.1",
		"--cluster-id", "Kubernetes", "--discovery-address", m.secure, "--ca-address", m.secure, "--root-ca", file("root.pem"), "--token", file("token"),
		"--config-path", file("p"), "--envoy", envoy, "--bind-address", "127.0.0.1", "--termination-drain-duration", "0s",
		"--admin-port", port(0), "--status-port", port(1), "--readiness-port", port(2), "--prometheus-port", port(3),
	}
	return a, nil
}

// start starts the agent, and returns the time until it has its certificate.
func (a *agentProcess) start(ctx context.Context) (time.Duration, error) {
	env := append([]string{"ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR=" + a.dns}, a.env...)
	began := time.Now()
	p, err := startProcess(ctx, "/usr/bin/env", append(append(env, a.binary), a.args...)...)
	if err != nil {
		return 0, err
	}
	a.process = p
	for {
		took := time.Since(began)
		switch text := p.log.String(); {
		case strings.Contains(text, `msg="got a certificate"`):
			return took, nil
		case took > patience:
			return 0, errors.Join(fmt.Errorf("the agent has no certificate after %v:\n%s", patience, text), p.stop())
		}
		time.Sleep(time.Millisecond)
	}
}

// relayed measures what the agent's relay adds to a push, and its CPU at many pushes.
func (b *benchmark) relayed(ctx context.Context, m *meshctl, a *agentProcess) error {
	direct, err := b.fleet(m, kind{tls: true})
	if err != nil {
		return err
	}
	defer direct.close()
	proof, err := harness.EnvoyTLS(filepath.Join(a.dir, "p", "envoy-rev.json"), mesh.XDSCluster)
	if err != nil {
		return err
	}
	behind := newFleet("", kind{}, func(string) credentials.TransportCredentials { return credentials.NewTLS(proof) })
	behind.socket, behind.first = filepath.Join(a.dir, "p", "XDS"), 10 // in the namespace of the agent, as proxy 0
	defer behind.close()
	for _, f := range []*fleet{direct, behind} {
		f.namespace = func(int) string { return loadNamespace(0) }
	}
	direct.grow(ctx, 1)
	behind.grow(ctx, 1)
	direct.grow(ctx, 2)
	for _, f := range []*fleet{direct, behind} {
		if _, err := f.all(ctx, complete); err != nil {
			return fmt.Errorf("%w\nthe log of the agent:\n%s", err, a.log.String())
		}
	}
	if err := pause(ctx, agentRelease); err != nil {
		return err
	}
	connected, err := a.settled(ctx)
	if err != nil {
		return err
	}
	b.report.add(fmt.Sprintf("agent: RSS once Envoy has %d Services", b.services), connected.rss, "bytes", 40e6)
	b.report.add("agent: part of it that is not pages of the program", connected.anon, "bytes", 0)
	var extra, control []float64
	for range relayedPushes {
		direct.drain()
		behind.drain()
		service, err := b.move()
		if err != nil {
			return err
		}
		has := func(e event) bool {
			return e.typ == xdswire.EndpointType && e.has(b.mesh.resource(xdswire.EndpointType, service))
		}
		var at [2]time.Time
		missing := 2
		if err := direct.watch(ctx, func(e event) int {
			if has(e) && at[e.proxy].IsZero() {
				at[e.proxy] = e.at
				missing--
			}
			return missing
		}); err != nil {
			return err
		}
		relayed, err := behind.all(ctx, has)
		if err != nil {
			return err
		}
		extra = append(extra, relayed[0].Sub(at[0]).Seconds())
		control = append(control, at[1].Sub(at[0]).Seconds())
	}
	b.report.add("agent: a push arrives behind the relay after it arrives directly: median", median(extra), "seconds", 0.0003)
	b.report.add("agent: the same, p99", quantile(extra, 99), "seconds", 0.0003)
	b.report.add("agent: a push arrives at a second direct proxy after the first: median", median(control), "seconds", 0)
	b.report.add("agent: the same, p99 of a second direct proxy", quantile(control, 99), "seconds", 0)

	used, err := a.settled(ctx)
	if err != nil {
		return err
	}
	b.report.add(fmt.Sprintf("agent: RSS after %d pushes", relayedPushes), used.rss, "bytes", 0)
	began, before := time.Now(), behind.bytes.Load()
	for i := range pushesASecond * relayedSeconds {
		if err := pause(ctx, time.Until(began.Add(time.Duration(i)*time.Second/pushesASecond))); err != nil {
			return err
		}
		if _, err := b.move(); err != nil {
			return err
		}
		direct.drain()
		behind.drain()
	}
	took := time.Since(began).Seconds()
	after, err := a.usage()
	if err != nil {
		return err
	}
	if behind.bytes.Load() == before {
		return errors.New("no push arrived behind the relay")
	}
	b.report.add("agent: changes while the CPU of the relay is measured", float64(pushesASecond*relayedSeconds)/took, perSecond, 0)
	b.report.add("agent: share of a processor for them", (after.cpu-used.cpu)/took, "ratio", 0.01)
	return nil
}

// move moves an endpoint of the next Service, which it returns.
func (b *benchmark) move() (service int, err error) {
	const addresses = 199 // no divisor of the usual numbers of Services, so that each change is one
	b.changed++
	service = b.changed % b.services
	return service, b.mesh.writeSlice(b.config, service, b.changed%addresses+1)
}

// names measures answers of the agent's DNS server from its table.
func (b *benchmark) names(ctx context.Context, a *agentProcess) error {
	var packed [][]byte
	for i := range b.services {
		packed = append(packed, question(strings.TrimPrefix(b.mesh.cluster(i), "outbound|80||")))
	}
	if err := a.hasNames(ctx, packed[0]); err != nil {
		return fmt.Errorf("%w\nthe log of the agent:\n%s", err, a.log.String())
	}
	for _, rate := range []int{0, dnsLimit / 2} {
		before, err := a.settled(ctx)
		if err != nil {
			return err
		}
		took, seconds, err := a.ask(ctx, packed, rate)
		if err != nil {
			return err
		}
		after, err := a.usage()
		if err != nil {
			return err
		}
		if rate == 0 {
			b.report.add("agent: DNS answers from the table, as fast as possible", float64(len(took))/seconds, perSecond, 0)
			b.report.add("agent: DNS answers per second of the agent's CPU", float64(len(took))/(after.cpu-before.cpu), perSecond, dnsLimit)
			continue
		}
		b.report.add("agent: DNS answers while the latency is measured", float64(len(took))/seconds, perSecond, 0)
		b.report.add("agent: p99 of them", quantile(took, 99), "seconds", 0.001)
	}
	return nil
}

// hasNames waits until the agent answers a question from its table.
func (a *agentProcess) hasNames(ctx context.Context, packed []byte) error {
	conn, err := net.Dial("udp", a.dns)
	if err != nil {
		return err
	}
	defer conn.Close()
	for began := time.Now(); time.Since(began) < patience; {
		if err := answer(conn, packed); err == nil {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the agent does not answer from a name table")
}

// ask asks all questions again and again from several sockets, rate of them a second or, with 0, as
// fast as possible. Each socket waits for its answer.
func (a *agentProcess) ask(ctx context.Context, packed [][]byte, rate int) (took []float64, seconds float64, err error) {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
	)
	began := time.Now()
	for client := range dnsClients {
		group.Go(func() {
			mine, failed := a.askAlone(ctx, packed, client, rate, began)
			mu.Lock()
			defer mu.Unlock()
			took, err = append(took, mine...), errors.Join(err, failed)
		})
	}
	group.Wait()
	return took, time.Since(began).Seconds(), err
}

func (a *agentProcess) askAlone(ctx context.Context, packed [][]byte, client, rate int, began time.Time) (took []float64, err error) {
	conn, err := net.Dial("udp", a.dns)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for i := 0; time.Since(began) < dnsSeconds*time.Second; i++ {
		if rate > 0 {
			due := began.Add(time.Duration(i*dnsClients+client) * time.Second / time.Duration(rate))
			if err := pause(ctx, time.Until(due)); err != nil {
				return nil, err
			}
		}
		asked := time.Now()
		if err := answer(conn, packed[(i*dnsClients+client)%len(packed)]); err != nil {
			return nil, err
		}
		took = append(took, time.Since(asked).Seconds())
	}
	return took, ctx.Err()
}

// answer asks a question and checks that the response has an address.
func answer(conn net.Conn, packed []byte) error {
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(packed); err != nil {
		return err
	}
	var response [512]byte
	n, err := conn.Read(response[:])
	if err == nil && (n < 12 || response[3]&0xf != 0 || binary.BigEndian.Uint16(response[6:]) == 0) {
		err = errors.New("a DNS response has no address")
	}
	return err
}

// question returns a DNS query for the IPv4 addresses of a name.
func question(name string) []byte {
	q := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0} // one question, recursion desired
	for label := range strings.SplitSeq(name, ".") {
		q = append(append(q, byte(len(label))), label...)
	}
	return append(q, 0, 0, 1, 0, 1) // A, IN
}

// pause waits for d; it does not wait if d is not positive.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// quantile returns the value below which a share of the values, in percent, is.
func quantile(values []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}
