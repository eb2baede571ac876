package clusters

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

// behavior answers a request to an API server, whose own answer it gets from next.
type behavior func(w http.ResponseWriter, r *http.Request, next http.Handler)

// falseAPI is a proxy between the pods of cluster1 and the API server of cluster2, with the
// certificate of the latter.
type falseAPI struct {
	t     *testing.T
	next  http.Handler
	leave func() // takes the proxy away

	mu       sync.Mutex // guards what follows
	behavior behavior
	ctx      context.Context // of all requests that have this behavior
	end      context.CancelFunc
}

// set ends all requests, and gives later ones a behavior.
func (f *falseAPI) set(b behavior) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end != nil {
		f.end()
	}
	f.behavior = b
	f.ctx, f.end = context.WithCancel(f.t.Context())
}

func (f *falseAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	behavior, until := f.behavior, f.ctx
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(until, cancel)()
	behavior(w, r.WithContext(ctx), f.next)
}

// betweenAPIs puts a falseAPI, which is honest at first, between the clusters.
func (u *user) betweenAPIs(t *testing.T) *falseAPI {
	t.Helper()
	api := u.clusters.Nodes[1]
	ca, err := os.ReadFile(api.path("certs/apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(api.path("certs/apiserver.crt"), api.path("certs/apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	next := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: api.api()})
	quiet := log.New(io.Discard, "", 0)
	next.Transport, next.FlushInterval, next.ErrorLog = transport, -1, quiet
	l, err := net.Listen("tcp", here+":0")
	if err != nil {
		t.Fatal(err)
	}
	f := &falseAPI{t: t, next: next}
	f.set(honest)
	server := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, ReadHeaderTimeout: requestTimeout, ErrorLog: quiet, Handler: f,
	}
	go func() { _ = server.ServeTLS(l, "", "") }()
	// Packets of connections without the proxy reset them.
	rules := fmt.Sprintf(`table ip between {
	chain nat { type nat hook prerouting priority -110; ip saddr %[1]s ip daddr %[2]s tcp dport 6443 dnat to %[3]s; }
	chain filter { type filter hook forward priority 0; ip saddr %[1]s ip daddr %[2]s tcp dport 6443 reject with tcp reset; }
}`, u.clusters.Nodes[0].Pods, api.IP, l.Addr())
	in := []string{"-t", strconv.Itoa(u.clusters.PIDs[0]), "-n", "nft"}
	if err := runIn(rules, "nsenter", append(in, "-f", "-")...); err != nil {
		t.Fatal(err)
	}
	f.leave = sync.OnceFunc(func() {
		if err := errors.Join(runIn("", "nsenter", append(in, "delete", "table", "ip", "between")...), server.Close()); err != nil {
			t.Error(err)
		}
		f.end()
		transport.CloseIdleConnections()
	})
	t.Cleanup(f.leave)
	return f
}

func honest(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) }

// slowly delays each answer, and each part of it.
func slowly(w http.ResponseWriter, r *http.Request, next http.Handler) {
	time.Sleep(time.Second)
	next.ServeHTTP(slowWriter{w}, r)
}

type slowWriter struct{ http.ResponseWriter }

func (s slowWriter) Write(p []byte) (int, error) {
	time.Sleep(200 * time.Millisecond)
	return s.ResponseWriter.Write(p)
}

func (s slowWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// gone answers watches as if what they ask for were no longer kept.
func gone(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.URL.Query().Has("watch") {
		says(http.StatusGone, "application/json", `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}`)(w, r, next)
		return
	}
	next.ServeHTTP(w, r)
}

// says returns a behavior that answers everything alike.
func says(status int, contentType, body string) behavior {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// silent answers nothing.
func silent(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }

// cut breaks each answer off.
func cut(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(&cutWriter{w}, r) }

type cutWriter struct{ http.ResponseWriter }

func (c *cutWriter) Write(p []byte) (int, error) {
	_, _ = c.ResponseWriter.Write(p[:len(p)/2])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

// another answers with the objects of another kind.
func another(w http.ResponseWriter, r *http.Request, next http.Handler) {
	for _, kind := range []string{"services", "endpointslices", "pods"} {
		if at, found := strings.CutSuffix(r.URL.Path, "/"+kind); found && !strings.HasSuffix(at, "/namespaces") {
			r.URL.Path = "/api/v1/namespaces"
			// A watch from a version of the other kind may stay silent. Without a version it starts with
			// all objects.
			query := r.URL.Query()
			query.Del("resourceVersion")
			r.URL.RawQuery = query.Encode()
			break
		}
	}
	next.ServeHTTP(w, r)
}

// testFalseAPIServer: the clients of cluster1 keep the endpoints of cluster2, and get the changes of
// cluster1, while the API server of cluster2 is slow or answers wrongly. If cluster2 can be read, its
// changes arrive, too; otherwise it is reported as lost.
func (u *user) testFalseAPIServer(t *testing.T) {
	loads := u.loads(t, 2)
	api := u.betweenAPIs(t)
	for _, fault := range []struct {
		name     string
		behavior behavior
		readable bool
	}{
		{"slow", slowly, true},
		{"watches expire", gone, true},
		{"no answer", silent, false},
		{"internal errors", says(http.StatusInternalServerError, "application/json", `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500}`), false},
		{"too many requests", says(http.StatusTooManyRequests, "text/plain", "later"), false},
		{"unknown credential", says(http.StatusUnauthorized, "text/plain", "Unauthorized"), false},
		{"another page", says(http.StatusOK, "text/html", "<html>Welcome</html>"), false},
		{"empty answers", says(http.StatusOK, "application/vnd.kubernetes.protobuf", ""), false},
		{"answers that break off", cut, false},
		{"objects of another kind", another, false},
	} {
		began := time.Now()
		api.set(fault.behavior)
		if fault.readable {
			u.changeOfCluster2(t)
			t.Logf("%s: changes arrived after %s", fault.name, time.Since(began).Round(time.Millisecond))
		} else {
			u.lost(t, true)
			t.Logf("%s: reported after %s", fault.name, time.Since(began).Round(time.Millisecond))
		}
		u.changeArrives(t)
		moreOfBoth(loads)
		api.set(honest)
		began = time.Now()
		u.lost(t, false)
		u.changeOfCluster2(t)
		t.Logf("%s: over %s after its end", fault.name, time.Since(began).Round(time.Millisecond))
	}
	api.leave()
	u.changeOfCluster2(t)
	moreOfBoth(loads)
	stop(loads)
}

// changeOfCluster2 adds a service to cluster2 and removes it, and waits until the client of cluster1
// has seen both.
func (u *user) changeOfCluster2(t *testing.T) {
	t.Helper()
	const service = "only-cluster2"
	for _, there := range []bool{true, false} {
		command := "delete -f -"
		if there {
			command = "apply -f -"
		}
		if _, err := u.try("{apiVersion: v1, kind: Service, metadata: {name: "+service+", namespace: sample}, spec: {selector: {app: helloworld}, ports: [{name: http, port: 5000}]}}",
			"kubectl --context cluster2 "+command); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, moved, fmt.Sprintf("service of cluster2 in cluster1: %v", there), func() error {
			out, err := u.try("", "meshctl pc clusters deploy/client.sample --context cluster1 --fqdn "+service+".sample.svc.cluster.local")
			if found := strings.Contains(out, service); err == nil && found != there {
				err = fmt.Errorf("found: %v", found)
			}
			return err
		})
	}
}
