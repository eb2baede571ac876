package attacks

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// servedWebhooks is a meshctl serve with webhooks.
type servedWebhooks struct {
	config string // its directory of objects
	url    string // of the webhooks
	status string // URL of /ready and of status pages
	scrape string // URL of /metrics
}

// serveWebhooks starts a control plane with the objects of a directory.
func serveWebhooks(t *testing.T, flags ...string) *servedWebhooks {
	t.Helper()
	work, addrs := t.TempDir(), harness.FreeAddrs(t, 3)
	s := &servedWebhooks{filepath.Join(work, "objects"), "https://" + addrs[0], "http://" + addrs[1], "http://" + addrs[2] + "/metrics"}
	if err := os.Mkdir(s.config, 0o700); err != nil {
		t.Fatal(err)
	}
	var log harness.LogBuffer
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, meshctl, append([]string{
		"serve", "--config-dir", s.config, "--state-dir", filepath.Join(work, "state"), "--cluster-id", "cluster1", "--https-addr", addrs[0],
		"--http-addr", addrs[1], "--monitoring-addr", addrs[2], "--grpc-addr", "", "--secure-grpc-addr", harness.FreeAddrs(t, 1)[0],
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("log of the control plane:\n%s", harness.Tail(log.String()))
		}
	})
	client := clientFrom(t, "127.0.0.1")
	eventually(t, "the control plane is ready", func() error {
		resp, err := client.Get(s.status + "/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return s
}

// clientFrom returns a client whose connections come from an address.
func clientFrom(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{
		DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: deadline}
}

// reviewOf returns the AdmissionReview of a new object.
func reviewOf(t *testing.T, kind string, object any) []byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": map[string]any{
		"uid": "u", "kind": map[string]any{"version": "v1", "kind": kind}, "namespace": "sample", "operation": "CREATE", "object": object,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// ask sends a review, and returns the response of the webhook.
func (s *servedWebhooks) ask(ctx context.Context, client *http.Client, path string, review []byte) (answer struct {
	Response struct {
		Allowed  bool
		Patch    []byte
		Warnings []string
		Status   struct{ Message string }
	}
}, err error,
) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(review))
	if err != nil {
		return answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return answer, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	return answer, err
}

// checkInjects checks that the webhook injects a pod, at once and each time, as an API server would call it.
func (s *servedWebhooks) checkInjects(t *testing.T, client *http.Client, when string) {
	t.Helper()
	pod := reviewOf(t, "Pod", map[string]any{"metadata": map[string]any{"name": "web"}, "spec": map[string]any{
		"containers": []any{map[string]any{"name": "app", "image": "web:1"}},
	}})
	for range 3 {
		answer, err := s.ask(t.Context(), client, "/inject", pod)
		if err != nil || !answer.Response.Allowed || len(answer.Response.Patch) == 0 {
			t.Fatalf("%s, an ordinary pod is not injected: %v, %+v", when, err, answer.Response)
		}
	}
}

// TestSlowBodiesLeaveTheWebhooks: a pod without credentials sends requests whose bodies never end, as
// many as one connection allows. Pods of other sources are still injected.
func TestSlowBodiesLeaveTheWebhooks(t *testing.T) {
	t.Parallel()
	s := serveWebhooks(t)
	attacker, apiServer := clientFrom(t, "127.0.0.2"), clientFrom(t, "127.0.0.3")
	s.checkInjects(t, apiServer, "before the attack")
	ctx, stop := context.WithCancel(t.Context())
	var attack sync.WaitGroup
	defer attack.Wait()
	defer stop()
	const streams = 32
	begun := make(chan struct{}, streams)
	for range streams {
		attack.Go(func() {
			for again := false; ctx.Err() == nil; again = true {
				s.sendSlowly(ctx, attacker, func() {
					if !again {
						begun <- struct{}{}
					}
				})
			}
		})
	}
	for range streams {
		<-begun
	}
	s.checkInjects(t, apiServer, "beside slow bodies")
}

// sendSlowly sends a request whose body never ends, until the webhook answers. It calls begun when the
// connection has taken the beginning of the body.
func (s *servedWebhooks) sendSlowly(ctx context.Context, client *http.Client, begun func()) {
	body, write := io.Pipe()
	defer func() { _ = write.Close() }()
	go func() {
		if _, err := io.WriteString(write, "{"); err == nil {
			begun()
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/inject", body)
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if resp, err := client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

// hugePods are pods that took minutes of work, and what their refusal says.
func hugePods(t *testing.T) map[string][]byte {
	t.Helper()
	list := func(n int, made func(int) any) (out []any) {
		for i := range n {
			out = append(out, made(i))
		}
		return out
	}
	pod := func(annotation string, spec map[string]any) []byte {
		return reviewOf(t, "Pod", map[string]any{
			"metadata": map[string]any{"name": "web", "annotations": map[string]any{"inject.istio.io/templates": annotation}}, "spec": spec,
		})
	}
	named := func(i int) any { return map[string]any{"name": fmt.Sprint("n", i)} }
	app := []any{map[string]any{"name": "app"}}
	return map[string][]byte{
		"containers":              pod("sidecar", map[string]any{"containers": list(100_000, named)}),
		"10001 items":             pod("sidecar", map[string]any{"containers": app, "volumes": list(10_001, named)}),
		"names 10000 templates":   pod(strings.Repeat("sidecar,", 10_000), map[string]any{"containers": app}),
		"two containers":          pod("sidecar", map[string]any{"containers": list(1_000, func(int) any { return map[string]any{"name": "istio-proxy"} })}),
		"has 20000 items":         pod("sidecar", map[string]any{"containers": append(app, map[string]any{"name": "istio-proxy", "env": list(20_000, named)})}),
		"more than 100000 values": pod("sidecar", map[string]any{"containers": list(900, func(i int) any { return map[string]any{"name": fmt.Sprint("n", i), "env": list(100, named)} })}),
		"levels":                  pod("sidecar", map[string]any{"containers": app, "x": deep(1_000)}),
		"500000 are accepted":     pod("sidecar", map[string]any{"containers": list(300_000, named)}),
	}
}

// deep returns lists in lists.
func deep(n int) any {
	var v any = 1
	for range n {
		v = []any{v}
	}
	return v
}

// TestHugePods: pods of huge size are refused with a reason, and pods of other sources are injected
// meanwhile.
func TestHugePods(t *testing.T) {
	t.Parallel()
	s := serveWebhooks(t)
	attacker, apiServer := clientFrom(t, "127.0.0.2"), clientFrom(t, "127.0.0.3")
	pods := hugePods(t)
	ctx, stop := context.WithCancel(t.Context())
	var attack sync.WaitGroup
	defer attack.Wait()
	defer stop()
	for _, review := range pods {
		for range 4 {
			attack.Go(func() {
				for ctx.Err() == nil {
					_, _ = s.ask(ctx, attacker, "/inject", review)
				}
			})
		}
	}
	s.checkInjects(t, apiServer, "beside huge pods")
	stop()
	attack.Wait()
	for says, review := range pods {
		answer, err := s.ask(t.Context(), attacker, "/inject", review)
		if text := fmt.Sprint(err) + answer.Response.Status.Message; answer.Response.Allowed || !strings.Contains(text, says) {
			t.Errorf("want a refusal with %q: %.300s", says, text)
		}
	}
}
