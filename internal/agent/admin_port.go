package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/peer"
	"github.com/meshctl/meshctl/internal/agent/unixsocket"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/serving"
)

// The admin interface of Envoy answers everybody who connects to it. Envoy itself connects where
// routes of others tell it to, so the interface is at a Unix socket that no such route can name: its
// name is random, and only this user can enter its directory. The agent serves the admin port, and
// passes on the requests that Envoy did not forward.

// adminSocketPrefix is what names of admin sockets begin with.
const adminSocketPrefix = "admin-"

// Bounds of the admin port.
const (
	adminTimeout    = 3 * time.Second // of a request of the agent itself
	maxAdminBody    = 64 << 10        // bytes of the response to it: a few statistics
	maxAdminTime    = time.Hour       // of a request of others, which may read a stream of events
	maxAdminRunning = 64              // requests of others at a time
)

// adminClient is a client of the admin interface.
type adminClient struct {
	http      *http.Client
	socket    string
	drainPath string
}

func newAdmin(cfg *config.Config) (*adminClient, error) {
	// The directory of the SDS socket is closed to other users.
	socket := filepath.Join(filepath.Dir(cfg.SDSSocket), adminSocketPrefix+rand.Text()[:16])
	if len(socket) > serving.MaxSocketPath {
		return nil, fmt.Errorf("socket path %s is %d bytes long, the system allows %d; choose a shorter directory with --config-path",
			socket, len(socket), serving.MaxSocketPath)
	}
	a := &adminClient{
		http: dial.HTTPClientVia(0, func(ctx context.Context, _, _ string) (net.Conn, error) { // requests have bounds of their own
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
		socket:    socket,
		drainPath: "/drain_listeners?graceful",
	}
	if cfg.Node.Type == mesh.Sidecar {
		// The outbound connections of a sidecar end with its application.
		a.drainPath = "/drain_listeners?inboundonly&graceful"
	}
	return a, nil
}

// prepare removes the sockets of an earlier Envoy, and returns the arguments that make Envoy listen
// at the socket of the agent, whatever its bootstrap says.
func (a *adminClient) prepare() (args []string, err error) {
	if err := unixsocket.OwnDirectory(filepath.Dir(a.socket)); err != nil {
		return nil, fmt.Errorf("admin interface: %w", err)
	}
	if err := a.removeSockets(); err != nil {
		return nil, err
	}
	part, err := json.Marshal(map[string]any{"admin": map[string]any{"address": map[string]any{
		"pipe": map[string]any{"path": a.socket, "mode": files.Secret},
	}}})
	if err != nil {
		return nil, fmt.Errorf("encode the address of the admin interface: %w", err)
	}
	return []string{"--config-yaml", string(part)}, nil
}

// removeSockets removes the sockets of the admin interface in the directory of the agent.
func (a *adminClient) removeSockets() error {
	all, err := filepath.Glob(filepath.Join(filepath.Dir(a.socket), adminSocketPrefix+"*"))
	if err != nil {
		return fmt.Errorf("find old sockets of the admin interface: %w", err)
	}
	for _, socket := range all {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the socket of the admin interface: %w", err)
		}
	}
	return nil
}

// serve answers on the admin port until ctx ends, and closes listener.
func (a *adminClient) serve(ctx context.Context, listener net.Listener, guard *peer.Guard, log *slog.Logger) error {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: adminHost})
			r.Out.URL.RawQuery = r.In.URL.RawQuery // with parts that Go cannot parse
		},
		Transport:     a.http.Transport,
		FlushInterval: -1, // at once: the response may be a stream
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "Envoy's admin interface does not answer: "+err.Error(), http.StatusServiceUnavailable)
		},
	}
	running := make(chan struct{}, maxAdminRunning)
	bounded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
			proxy.ServeHTTP(w, r)
		default:
			http.Error(w, fmt.Sprintf("%d requests to Envoy's admin interface run already", maxAdminRunning), http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{
		Handler:           guard.Handler(http.NewCrossOriginProtection().Handler(bounded)),
		ConnContext:       peer.KeepConnection,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       maxAdminTime,
		WriteTimeout:      maxAdminTime,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if err := serving.HTTP(ctx, server, listener); err != nil {
		return fmt.Errorf("serve Envoy's admin interface on %s: %w", listener.Addr(), err)
	}
	return nil
}

// adminHost is the host in requests at the socket.
const adminHost = "envoy"

func (a *adminClient) close() { a.http.CloseIdleConnections() }

// metrics opens Envoy's metrics in the text format of Prometheus.
func (a *adminClient) metrics(ctx context.Context, query string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+adminHost+"/stats/prometheus?"+query, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask envoy: %w", err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask envoy: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("ask envoy: metrics: status %s", resp.Status), resp.Body.Close())
	}
	return resp.Body, nil
}

func (a *adminClient) do(ctx context.Context, method, path string) (body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+adminHost+path, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("ask envoy: %w", err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask envoy: %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminBody))
	if err != nil {
		return "", fmt.Errorf("read envoy's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask envoy: %s %s: status %s", method, path, resp.Status)
	}
	return string(data), nil
}
