package attacks

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/agent/sts"
	"github.com/meshctl/meshctl/internal/dial"
)

// TestCallersOfHooksDoNotDelayProbes: whoever reaches the status port can call the hooks of an
// application, which may take minutes. The kubelet's probes are answered meanwhile.
func TestCallersOfHooksDoNotDelayProbes(t *testing.T) {
	calls := make(chan struct{}, 1000)
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" {
			calls <- struct{}{}
			<-r.Context().Done()
		}
	}))
	listener, err := net.Listen("tcp", net.JoinHostPort(agentAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	_ = app.Listener.Close()
	app.Listener = listener
	app.Start()
	defer app.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	startAttacked(t, fmt.Sprintf(`ISTIO_KUBE_APP_PROBERS={"/app-health/web/readyz": {"httpGet": {"path": "/ready", "port": %[1]s}, "timeoutSeconds": 60},`+
		`"/app-lifecycle/web/prestopz": {"httpGet": {"path": "/hook", "port": %[1]s}}}`, port))
	attack, stop := context.WithCancel(t.Context())
	client := dial.HTTPClient(deadline, nil)
	ask := func(ctx context.Context, path string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(agentAddress, "15020")+path, http.NoBody)
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	var attackers sync.WaitGroup
	defer client.CloseIdleConnections()
	defer attackers.Wait()
	defer stop()
	for range 40 {
		attackers.Go(func() { _, _ = ask(attack, "/app-lifecycle/web/prestopz") })
	}
	<-calls
	eventually(t, "all callers of the hook", func() error { // the agent has accepted their connections
		return connections(net.JoinHostPort(agentAddress, "15020"), 40)
	})
	kubelet, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if status, err := ask(kubelet, "/app-health/web/readyz"); err != nil || status != http.StatusOK {
		t.Errorf("the probe of the kubelet: %d, %v", status, err)
	}
}

// connections returns an error unless there are n connections to an address.
func connections(address string, n int) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ip, number := net.ParseIP(host).To4(), 0
	if _, err := fmt.Sscan(port, &number); err != nil {
		return err
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return err
	}
	const established = " 01 "
	want := fmt.Sprintf(" %02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], number)
	found := 0
	for line := range strings.Lines(string(table)) {
		fields := strings.SplitN(line, ": ", 2)
		if len(fields) == 2 && strings.HasPrefix(" "+fields[1], want) && strings.Contains(line, established) {
			found++
		}
	}
	if found < n {
		return fmt.Errorf("%d connections", found)
	}
	return nil
}

// TestPagesExchangeNoToken: a page in a browser of the machine, whose name resolves to a loopback
// address, gets no token of the workload.
func TestPagesExchangeNoToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	startAttacked(t, "STS_PORT=15463", "STS_TOKEN_FILE="+file)
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	for host, want := range map[string]int{"rebound.test:15463": http.StatusForbidden, "": http.StatusOK} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+net.JoinHostPort(agentAddress, "15463")+sts.Path,
			strings.NewReader(url.Values{"grant_type": {sts.GrantType}, "subject_token": {"a"}, "subject_token_type": {sts.JWTType}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("host %q: status %s, want %d", host, resp.Status, want)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
