package e2e

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// ruledMesh has services with two versions, and services for TLS settings, in front of one
// TLS server. Each has a DestinationRule. ca is the content of server.pem in the folder
// certificates.
func ruledMesh(certificates string, tlsPort int, ca []byte) string {
	var out strings.Builder
	fmt.Fprint(&out, `
apiVersion: v1
kind: Node
metadata: {name: near, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {nodeName: near, serviceAccountName: client}
status: {podIP: 10.11.0.77}
---
apiVersion: v1
kind: Pod
metadata: {name: v1, namespace: shop, labels: {version: v1}}
spec: {nodeName: near}
status: {podIP: 10.11.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: v2, namespace: shop, labels: {version: v2, istio-locality: r2.z1}}
status: {podIP: 10.11.0.2}
`)
	service := func(name, vip string, port int, addresses, spec string) {
		protocol := "http"
		if name == "idle" {
			protocol = "tcp"
		}
		out.WriteString(testService{name: name, vip: vip, protocol: protocol, port: 80, target: port, endpoints: addresses, rule: spec}.objects())
	}
	versions := endpointsOf("v1", "v2")
	service("hash", "10.96.0.1", 8080, versions, `
  subsets: [{name: one, labels: {version: v1}}, {name: two, labels: {version: v2}}, {name: none, labels: {version: v3}}],
  trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-user}}}`)
	service("limited", "10.96.0.2", 8081, "{addresses: [10.11.0.1]}", `
  trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1}}}`)
	const outlier = "outlierDetection: {consecutive5xxErrors: 1, baseEjectionTime: 300s, maxEjectionPercent: 100}"
	service("outlier", "10.96.0.3", 8082, versions, `
  trafficPolicy: {`+outlier+`, loadBalancer: {localityLbSetting: {enabled: false}}}`)
	service("failover", "10.96.0.10", 8083, versions, `
  trafficPolicy: {`+outlier+`}`)
	service("distributed", "10.96.0.11", 8084, versions, `
  trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: r1/*, to: {r2/z1: 100}}]}}}`)
	service("idle", "10.96.0.12", 8086, "{addresses: [10.11.0.1]}", `
  trafficPolicy: {connectionPool: {tcp: {idleTimeout: 0.2s}}}`)
	service("own", "10.96.0.13", 8085, "{addresses: [10.11.0.77], targetRef: {kind: Pod, name: client}}", `
  trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1}}}`)
	server := "{addresses: [127.0.0.1]}"
	service("simple", "10.96.0.4", tlsPort, server, fmt.Sprintf(`
  trafficPolicy: {tls: {mode: SIMPLE, sni: example.com, subjectAltNames: [example.com], caCertificates: %s/server.pem}}`, certificates))
	service("mutual", "10.96.0.5", tlsPort, server, fmt.Sprintf(`
  trafficPolicy: {tls: {mode: MUTUAL, sni: example.com, subjectAltNames: [example.com],
    caCertificates: %[1]s/server.pem, clientCertificate: %[1]s/server.pem, privateKey: %[1]s/key.pem}}`, certificates))
	service("late", "10.96.0.14", tlsPort, server, fmt.Sprintf(`
  trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}, tls: {mode: SIMPLE, sni: example.com, subjectAltNames: [example.com], caCertificates: %s/late.pem}}`, certificates))
	service("stranger", "10.96.0.6", tlsPort, server, fmt.Sprintf(`
  trafficPolicy: {tls: {mode: SIMPLE, sni: example.com, subjectAltNames: [example.org], caCertificates: %s/server.pem}}`, certificates))
	for i, sni := range []string{"example.com", "example.org"} { // the certificate has the first one
		service(fmt.Sprint("sni-", i), fmt.Sprint("10.96.0.", 15+i), tlsPort, server, fmt.Sprintf(`
  trafficPolicy: {tls: {mode: SIMPLE, sni: %s, caCertificates: %s/server.pem}}`, sni, certificates))
	}
	service("unchecked", "10.96.0.7", tlsPort, server, `
  trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}`)
	service("credential", "10.96.0.9", tlsPort, server, `
  workloadSelector: {matchLabels: {app: client}},
  trafficPolicy: {tls: {mode: SIMPLE, sni: example.com, subjectAltNames: [example.com], credentialName: partner}}`)
	fmt.Fprintf(&out, `---
apiVersion: v1
kind: Secret
metadata: {name: partner, namespace: shop}
data: {ca.crt: %s}
`, base64.StdEncoding.EncodeToString(ca))
	fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: automatic, namespace: shop}
spec:
  hosts: [example.com]
  addresses: [10.96.0.8]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: %d}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: automatic, namespace: shop}
spec: {host: example.com, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: %s/server.pem}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: upgraded, namespace: shop}
spec:
  hosts: [upgraded.example.com]
  addresses: [10.96.0.17]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: https, protocol: HTTPS, targetPort: %[1]d}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: upgraded, namespace: shop}
spec: {hosts: [upgraded.example.com], http: [{match: [{port: 80}], route: [{destination: {host: upgraded.example.com, port: {number: 443}}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: upgraded, namespace: shop}
spec:
  host: upgraded.example.com
  trafficPolicy:
    connectionPool: {http: {h2UpgradePolicy: UPGRADE}}
    tls: {mode: SIMPLE, sni: example.com, caCertificates: %[2]s/server.pem}
`, tlsPort, certificates)
	for i, san := range []string{"example.com", "example.org"} { // the certificate has the first one
		fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: san-%[1]d, namespace: shop}
spec:
  hosts: [san-%[1]d.test]
  addresses: [10.96.0.%[2]d]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: %[3]d}]
  endpoints: [{address: 127.0.0.1}]
  subjectAltNames: [%[4]s]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: san-%[1]d, namespace: shop}
spec: {host: san-%[1]d.test, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: %[5]s/server.pem}}}
`, i, 18+i, tlsPort, san, certificates)
	}
	return out.String()
}

// TestDestinationRules sends redirected requests to services with DestinationRules.
func TestDestinationRules(t *testing.T) {
	if !inPod(t) {
		return
	}
	runTool(t, "", "ip", "link", "set", "lo", "up")
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			client = r.TLS.PeerCertificates[0].Subject.Organization[0]
		}
		fmt.Fprintf(w, "%s as %s", client, r.TLS.ServerName)
		if r.ProtoMajor == 2 {
			fmt.Fprint(w, " by HTTP/2")
		}
	}))
	secure.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	files := harness.ShortDir(t)
	writeCertificate(t, files, &secure.TLS.Certificates[0])
	otherCA := string(certs.EncodeCerts(otherRoot(t)))
	p := startPod(t, ruledMesh(files, secure.Listener.Addr().(*net.TCPAddr).Port, certs.EncodeCerts(secure.Certificate())), "10.11.0.77")
	for _, ip := range []string{"10.11.0.1", "10.11.0.2"} {
		p.address(t, ip)
	}
	for i := range 19 {
		p.address(t, fmt.Sprint("10.96.0.", i+1))
	}

	t.Run("subsets", func(t *testing.T) {
		clusters := adminGet(t, "127.0.0.1:15000", "/clusters")
		for subset, want := range map[string][]string{
			"": {"10.11.0.1", "10.11.0.2"}, "one": {"10.11.0.1"}, "two": {"10.11.0.2"}, "none": nil,
		} {
			name := "outbound|80|" + subset + "|hash.shop.svc.cluster.local::"
			var got []string
			for _, ip := range []string{"10.11.0.1", "10.11.0.2"} {
				if strings.Contains(clusters, name+ip+":8080::") {
					got = append(got, ip)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || !strings.Contains(clusters, name) {
				t.Errorf("subset %q has the endpoints %v, want %v", subset, got, want)
			}
		}
	})
	t.Run("consistent hash", func(t *testing.T) {
		answers(t, "10.11.0.1:8080", "v1")
		answers(t, "10.11.0.2:8080", "v2")
		count := map[string]int{}
		for user := range 20 {
			first := requested(t, "http://10.96.0.1", "", "x-user", fmt.Sprint(user)).body
			count[first]++
			for range 4 {
				if got := requested(t, "http://10.96.0.1", "", "x-user", fmt.Sprint(user)).body; got != first {
					t.Errorf("user %d is at %s after %s", user, got, first)
				}
			}
		}
		if len(count) != 2 {
			t.Errorf("requests of all users by version: %v", count)
		}
	})
	t.Run("connection pool", func(t *testing.T) {
		limits(t, "10.11.0.1:8081", "http://10.96.0.2")
	})
	t.Run("inbound connection pool", func(t *testing.T) {
		limits(t, "10.11.0.77:8085", "http://10.11.0.77:8085")
	})
	t.Run("idle timeout", func(t *testing.T) {
		l, err := net.Listen("tcp", "10.11.0.1:8086")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		conn, err := net.Dial("tcp", "10.96.0.12:80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := l.Accept(); err != nil { // the server keeps the connection open
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			t.Errorf("read %d bytes, %v, want the end of the connection", n, err)
		}
	})
	t.Run("outlier detection", func(t *testing.T) {
		answers(t, "10.11.0.1:8082", "well")
		serves(t, "10.11.0.2:8082", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		failed := 0
		for range 40 {
			if requested(t, "http://10.96.0.3", "").status != http.StatusOK {
				failed++
			}
		}
		// The first failure ejects the endpoint, for which workers need a moment.
		if failed < 1 || failed > 10 {
			t.Errorf("%d of 40 requests failed, want 1 or a few", failed)
		}
	})
	t.Run("failover", func(t *testing.T) {
		var broken atomic.Bool
		serves(t, "10.11.0.1:8083", func(w http.ResponseWriter, _ *http.Request) {
			if broken.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = io.WriteString(w, "near")
		})
		answers(t, "10.11.0.2:8083", "far")
		for range 20 {
			if got := requested(t, "http://10.96.0.10", ""); got.body != "near" {
				t.Errorf("the response is %+v, want one of the near endpoint", got)
			}
		}
		broken.Store(true)
		// The near endpoint is ejected after its first response. Workers hear of that later.
		harness.Eventually(t, deadline, "a response of the far endpoint", func() error {
			if got := requested(t, "http://10.96.0.10", ""); got.body != "far" {
				return fmt.Errorf("the response is %+v", got)
			}
			return nil
		})
		for range 5 {
			if got := requested(t, "http://10.96.0.10", ""); got.body != "far" {
				t.Errorf("the response is %+v, want one of the far endpoint", got)
			}
		}
	})
	t.Run("distribution", func(t *testing.T) {
		answers(t, "10.11.0.1:8084", "near")
		answers(t, "10.11.0.2:8084", "far")
		for range 10 {
			if got := requested(t, "http://10.96.0.11", ""); got.body != "far" {
				t.Errorf("the response is %+v, want one of the far endpoint", got)
			}
		}
	})
	t.Run("TLS", func(t *testing.T) {
		for _, row := range []struct {
			vip, host string
			status    int
			body      string
		}{
			{"10.96.0.4", "", 200, "nobody as example.com"},
			{"10.96.0.5", "", 200, "Acme Co as example.com"},
			{"10.96.0.6", "", 503, ""}, // the certificate has another name
			{"10.96.0.7", "", 200, "nobody as "},
			{"10.96.0.9", "", 200, "nobody as example.com"},
			{"10.96.0.8", "example.com", 200, "nobody as example.com"},
			{"10.96.0.15", "", 200, "nobody as example.com"}, // the certificate has the server name, not the host
			{"10.96.0.16", "", 503, ""},
			{"10.96.0.17", "upgraded.example.com", 200, "nobody as example.com by HTTP/2"},
			{"10.96.0.18", "san-0.test", 200, "nobody as san-0.test"},
			{"10.96.0.19", "san-1.test", 503, ""},
		} {
			got := requested(t, "http://"+row.vip, row.host)
			if got.status != row.status || row.status == http.StatusOK && got.body != row.body {
				t.Errorf("GET %s: %d %q, want %d %q", row.vip, got.status, got.body, row.status, row.body)
			}
		}
	})
	t.Run("files that come later", func(t *testing.T) {
		if got := requested(t, "http://10.96.0.14", ""); got.status != http.StatusServiceUnavailable {
			t.Errorf("without CA certificates: %+v", got)
		}
		for _, ca := range [][]byte{certs.EncodeCerts(secure.Certificate()), []byte(otherCA), certs.EncodeCerts(secure.Certificate())} {
			replace(t, filepath.Join(files, "late.pem"), string(ca))
			want := http.StatusOK
			if string(ca) == otherCA {
				want = http.StatusServiceUnavailable
			}
			eventually(t, fmt.Sprint("Envoy has read the file: status ", want), func() error {
				if got := requested(t, "http://10.96.0.14", ""); got.status != want {
					return fmt.Errorf("%+v", got)
				}
				return nil
			})
		}
	})
}

// limits sends three requests at a time to an address that permits one connection and one
// waiting request. The server listens at the address at.
func limits(t *testing.T, at, url string) {
	t.Helper()
	arrived, release := make(chan struct{}, 8), make(chan struct{})
	serves(t, at, func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	})
	got := make(chan response, 3)
	ask := func() { got <- requested(t, url, "") }
	go ask()
	<-arrived // it has the only connection
	go ask()
	go ask()
	// One waits for the connection, the other has no place in the queue.
	if r := <-got; r.status != http.StatusServiceUnavailable || r.header.Get("X-Envoy-Overloaded") != "true" {
		t.Errorf("the response beyond the limits is %+v", r)
	}
	close(release)
	for range 2 {
		if r := <-got; r.status != http.StatusOK {
			t.Errorf("a response within the limits is %+v", r)
		}
	}
}

// otherRoot returns a CA certificate that signed nothing.
func otherRoot(t *testing.T) *x509.Certificate {
	t.Helper()
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "other", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return root.Cert
}

// writeCertificate writes the certificate of a server, with which it is also a client, and
// its key as server.pem and key.pem.
func writeCertificate(t *testing.T, dir string, c *tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"server.pem": {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// response is the response to a GET request.
type response struct {
	status int
	body   string
	header http.Header
}

// requested returns the response to a GET request for a host, over a connection of its own.
// Status 0 means an error. The headers are names and values.
func requested(t *testing.T, url, host string, headers ...string) response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return response{}
	}
	req.Host = host
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := dial.HTTPClient(deadline, nil)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return response{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return response{resp.StatusCode, string(body), resp.Header}
}
