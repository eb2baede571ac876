package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// gatewayAt is the address of the ports of the gateway.
const gatewayAt = "127.3.0.1"

// gatewayMesh has a gateway with a server for each mode of TLS. The folder files has a
// certificate.
const gatewayMesh = `apiVersion: v1
kind: Pod
metadata: {name: ingress, namespace: edge, labels: {istio: ingress}}
spec: {serviceAccountName: ingress, containers: [{name: proxy}]}
status: {podIP: 10.11.0.9, phase: Running}
---
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: edge}
spec:
  selector: {istio: ingress}
  ports: [{name: http, port: 80, targetPort: 8880}, {name: https, port: 443, targetPort: 8443}, {name: http3, protocol: UDP, port: 443, targetPort: 8443}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: [plain.example.com]}
  - {port: {number: 80, name: old, protocol: HTTP2}, hosts: [old.example.com], tls: {httpsRedirect: true}}
  - {port: {number: 443, name: simple, protocol: HTTPS}, hosts: [simple.example.com], tls: {mode: SIMPLE, credentialName: simple}}
  - {port: {number: 443, name: mutual, protocol: HTTPS}, hosts: [mutual.example.com], tls: {mode: MUTUAL, credentialName: mutual}}
  - port: {number: 443, name: optional, protocol: HTTPS}
    hosts: [optional.example.com]
    tls: {mode: OPTIONAL_MUTUAL, credentialName: simple, caCertCredentialName: mutual}
  - {port: {number: 443, name: named, protocol: HTTPS}, hosts: [named.example.com], tls: {mode: MUTUAL, credentialName: mutual, subjectAltNames: [client.example.com]}}
  - {port: {number: 443, name: mesh, protocol: HTTPS}, hosts: [mesh.example.com], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: 443, name: both, protocol: HTTPS}, hosts: [both.example.com], tls: {mode: SIMPLE, credentialNames: [simple, rsa]}}
  - {port: {number: 443, name: both-older, protocol: HTTPS}, hosts: [both-older.example.com], tls: {mode: SIMPLE, credentialNames: [simple, rsa], maxProtocolVersion: TLSV1_2}}
  - {port: {number: 443, name: files, protocol: HTTPS}, hosts: [files.example.com], tls: {mode: SIMPLE, serverCertificate: FILES/cert-chain.pem, privateKey: FILES/key.pem}}
  - {port: {number: 443, name: leftover, protocol: HTTPS}, hosts: [leftover.example.com], tls: {mode: SIMPLE, credentialName: simple, serverCertificate: FILES/none.pem, privateKey: FILES/none.pem}}
  - {port: {number: 443, name: older, protocol: HTTPS}, hosts: [older.example.com], tls: {mode: SIMPLE, credentialName: rsa, maxProtocolVersion: TLSV1_2, cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384]}}
  - {port: {number: 443, name: missing, protocol: HTTPS}, hosts: [missing.example.com], tls: {mode: SIMPLE, credentialName: missing}}
  - {port: {number: 443, name: pass, protocol: TLS}, hosts: [pass.example.com, "*.web.apps.example.com"], tls: {mode: PASSTHROUGH}}
  - {port: {number: 443, name: end, protocol: TLS}, hosts: [end.example.com], tls: {mode: SIMPLE, credentialName: simple}}
  - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ["*"]}
  - {port: {number: 0, name: socket, protocol: HTTP}, bind: "unix://FILES/socket", hosts: [plain.example.com]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: apps}
spec:
  hosts: [plain.example.com, old.example.com, simple.example.com]
  gateways: [edge/shop]
  http:
  - match: [{uri: {prefix: /moved}}]
    redirect: {uri: /}
  - match: [{uri: {prefix: /partner}}]
    route: [{destination: {host: partner}}]
  - route: [{destination: {host: web, port: {number: 18000}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: streams, namespace: apps}
spec:
  hosts: ["*"]
  gateways: [edge/shop]
  tls:
  - match: [{sniHosts: [pass.example.com, outbound_.18443_._.web.apps.example.com]}]
    route: [{destination: {host: web, port: {number: 18443}}}]
  tcp:
  - route: [{destination: {host: web, port: {number: 18000}}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: partner, namespace: apps}
spec:
  hosts: [partner.apps.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 443, name: http, protocol: HTTP, targetPort: 18444}]
  endpoints: [{address: 127.3.0.3}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: partner, namespace: apps}
spec: {host: partner, trafficPolicy: {tls: {mode: MUTUAL, credentialName: mutual-client, sni: a.example.com, subjectAltNames: ["*.example.com"]}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: apps}
spec:
  clusterIP: 10.96.0.1
  ports: [{name: http, port: 18000}, {name: tls, port: 18443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: apps, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 18000}, {name: tls, port: 18443}]
endpoints: [{addresses: [127.3.0.3]}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: other, namespace: other}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 443, name: foreign, protocol: HTTPS}, hosts: [foreign.example.com], tls: {mode: SIMPLE, credentialName: other/simple}}
  - {port: {number: 443, name: twice, protocol: HTTPS}, hosts: [simple.example.com], tls: {mode: SIMPLE, credentialName: rsa}}
  - {port: {number: 8444, name: alone, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: simple}}
`

// keyPair is a certificate with its key, of one CA.
type keyPair struct {
	chain, key, roots []byte // PEM
}

// issue returns a certificate with a name.
func issue(t *testing.T, ca *certs.Authority, kind certs.Algorithm, name string) keyPair {
	t.Helper()
	key, err := certs.GenerateKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.SignNames(key.Public(), certs.LeafSpec{DNSNames: []string{name}, TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := certs.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return keyPair{certs.EncodeCerts(cert), text, certs.EncodeCerts(ca.Cert)}
}

func (p keyPair) client(t *testing.T) *tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(p.chain, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// secret returns a Secret with the certificate of a server and the roots of its clients.
func (p keyPair) secret(namespace, name string, roots []byte) string {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: %s, namespace: %s}\ndata: {tls.crt: %s, tls.key: %s, ca.crt: %s}\n",
		name, namespace, encode(p.chain), encode(p.key), encode(roots))
}

// authority returns a CA of its own.
func authority(t *testing.T, name string) *certs.Authority {
	t.Helper()
	ca, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: name, TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// tlsCall describes a request over TLS.
type tlsCall struct {
	port, host string
	client     *tls.Certificate
	modify     func(*tls.Config)
	header     http.Header
}

// tlsAnswer is the response to a tlsCall, or an error.
type tlsAnswer struct {
	status int
	body   string
	server *x509.Certificate
	state  *tls.ConnectionState
	altSvc string // the header that announces HTTP/3
	err    error
}

// send sends the request on a connection of its own. It does not verify the server.
func (c tlsCall) send(t *testing.T) (out tlsAnswer) {
	t.Helper()
	config := dial.UnverifiedTLSConfig(c.host)
	config.MinVersion = tls.VersionTLS12
	if c.client != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.client, nil }
	}
	if c.modify != nil {
		c.modify(config)
	}
	conn, err := tls.Dial("tcp", net.JoinHostPort(gatewayAt, c.port), config)
	if err != nil {
		return tlsAnswer{err: err}
	}
	defer func() { _ = conn.Close() }()
	state := conn.ConnectionState()
	out.state, out.server = &state, state.PeerCertificates[0]
	client := dial.HTTPClientOver(&http.Transport{DialTLS: func(string, string) (net.Conn, error) { return conn, nil }}) //nolint:staticcheck // one connection
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.host, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = c.header.Clone()
	resp, err := client.Do(req)
	if err != nil {
		out.err = err
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	out.status, out.body, out.altSvc, out.err = resp.StatusCode, string(body), resp.Header.Get("Alt-Svc"), err
	return out
}

// TestGateways sends requests to each server of a gateway.
func TestGateways(t *testing.T) {
	dir := harness.ShortDir(t)
	servers, clients := authority(t, "servers"), authority(t, "clients")
	simple, rsa := issue(t, servers, certs.ECDSAP256, "*.example.com"), issue(t, servers, certs.RSA2048, "*.example.com")
	client, named, stranger := issue(t, clients, certs.ECDSAP256, "anybody.example.com"), issue(t, clients, certs.ECDSAP256, "client.example.com"), issue(t, authority(t, "strangers"), certs.ECDSAP256, "client.example.com")

	mesh := filepath.Join(dir, "mesh")
	files := filepath.Join(dir, "files")
	for _, d := range []string{filepath.Join(mesh, "cluster1"), filepath.Join(mesh, "cluster2"), files} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(mesh, "cluster1", "gateway.yaml")
	secrets := filepath.Join(mesh, "cluster1", "secrets.yaml")
	replace(t, config, strings.ReplaceAll(gatewayMesh, "FILES", files))
	roots := certs.EncodeCerts(clients.Cert)
	replace(t, secrets, simple.secret("edge", "simple", nil)+rsa.secret("edge", "rsa", nil)+simple.secret("edge", "mutual", roots)+simple.secret("other", "simple", nil)+
		named.secret("edge", "mutual-client", certs.EncodeCerts(servers.Cert)))
	replace(t, filepath.Join(files, "cert-chain.pem"), string(rsa.chain))
	replace(t, filepath.Join(files, "key.pem"), string(rsa.key))

	web := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s of %s, certificate %q", r.URL.Path, r.Host, r.Header.Get("X-Forwarded-Client-Cert"))
	}
	serves(t, "127.3.0.3:18000", web)
	servesTLS(t, "127.3.0.3:18443", &tls.Config{Certificates: []tls.Certificate{*rsa.client(t)}}, web)
	servesTLS(t, "127.3.0.3:18444", &tls.Config{Certificates: []tls.Certificate{*simple.client(t)}, ClientAuth: tls.RequireAnyClientCert}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s as %s", r.TLS.PeerCertificates[0].DNSNames[0], r.TLS.ServerName)
	})
	_, secure := controlPlane(t, dir, mesh, "--socket-dir", files)
	gateway := proxy{"ingress", "router", "edge", "ingress", "10.11.0.9", map[string]string{"istio": "ingress"}}
	stop := gateway.start(t, dir, secure)
	defer stop()
	mustRun(t, "certs", "leaf", "--ca", filepath.Join(dir, "ca", "cluster1"), "--namespace", "a", "--service-account", "b", "--out", filepath.Join(dir, "leaf"))
	workload, err := tls.LoadX509KeyPair(filepath.Join(dir, "leaf", "cert-chain.pem"), filepath.Join(dir, "leaf", "key.pem"))
	if err != nil {
		t.Fatal(err)
	}

	t.Run("HTTP", func(t *testing.T) {
		if got := requested(t, "http://"+gatewayAt+":8880", "unknown.example.com"); got.status != http.StatusNotFound {
			t.Errorf("a host of no server: %+v, want 404", got)
		}
		if got := requested(t, "http://"+gatewayAt+":8880/a", "plain.example.com", "X-Forwarded-Client-Cert", "forged"); got.body != `/a of plain.example.com, certificate ""` {
			t.Errorf("a VirtualService: %+v", got)
		}
		if got := requested(t, "http://"+gatewayAt+":8880/partner", "plain.example.com"); got.body != "client.example.com as a.example.com" {
			t.Errorf("a destination that requires a certificate: %+v", got)
		}
		if got := requested(t, "http://"+gatewayAt+":9000/a", "anything"); got.body != `/a of anything, certificate ""` && got.status != http.StatusOK {
			t.Errorf("TCP: %+v", got)
		}
		local := dial.HTTPClientVia(deadline, func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", filepath.Join(files, "socket"))
		})
		defer local.CloseIdleConnections()
		resp, err := local.Get("http://plain.example.com/a")
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
			t.Errorf("over a Unix socket: %s", resp.Status)
		}
		conn, err := net.Dial("tcp", gatewayAt+":8880")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprint(conn, "GET /a HTTP/1.1\r\nHost: old.example.com\r\nConnection: close\r\n\r\n")
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(answer), "301 ") || !strings.Contains(string(answer), "location: https://old.example.com/a\r\n") {
			t.Errorf("redirect: %q, %v", answer, err)
		}
	})
	t.Run("TLS", func(t *testing.T) {
		refused := func(a tlsAnswer) error {
			if a.err == nil {
				return fmt.Errorf("status %d, want an error", a.status)
			}
			return nil
		}
		served := func(a tlsAnswer) error {
			if a.err != nil || a.status != http.StatusNotFound { // no VirtualService
				return fmt.Errorf("status %d, want 404: %w", a.status, a.err)
			}
			return nil
		}
		routed := func(a tlsAnswer) error {
			if a.err != nil || a.status != http.StatusOK {
				return fmt.Errorf("status %d, %q, want 200: %w", a.status, a.body, a.err)
			}
			return nil
		}
		for _, row := range []struct {
			name string
			call tlsCall
			want func(tlsAnswer) error
		}{
			{"simple", tlsCall{host: "simple.example.com"}, routed},
			{"passed through", tlsCall{host: "pass.example.com"}, func(a tlsAnswer) error { return errors.Join(routed(a), keyIs(a, x509.RSA)) }},
			{"ended for TCP", tlsCall{host: "end.example.com"}, func(a tlsAnswer) error { return errors.Join(routed(a), keyIs(a, x509.ECDSA)) }},
			{"server name of no server", tlsCall{host: "unknown.example.com"}, refused},
			{"mutual", tlsCall{host: "mutual.example.com", client: client.client(t)}, served},
			{"mutual, no certificate", tlsCall{host: "mutual.example.com"}, refused},
			{"mutual, other CA", tlsCall{host: "mutual.example.com", client: stranger.client(t)}, refused},
			{"optional", tlsCall{host: "optional.example.com", client: client.client(t)}, served},
			{"optional, no certificate", tlsCall{host: "optional.example.com"}, served},
			{"optional, other CA", tlsCall{host: "optional.example.com", client: stranger.client(t)}, refused},
			{"name of the client", tlsCall{host: "named.example.com", client: named.client(t)}, served},
			{"other name of the client", tlsCall{host: "named.example.com", client: client.client(t)}, refused},
			{"mesh", tlsCall{host: "mesh.example.com", client: &workload}, served},
			{"mesh, no certificate", tlsCall{host: "mesh.example.com"}, refused},
			{"mesh, other CA", tlsCall{host: "mesh.example.com", client: client.client(t)}, refused},
			{"files", tlsCall{host: "files.example.com"}, func(a tlsAnswer) error { return errors.Join(served(a), keyIs(a, x509.RSA)) }},
			{"a Secret and leftover files", tlsCall{host: "leftover.example.com"}, func(a tlsAnswer) error { return errors.Join(served(a), keyIs(a, x509.ECDSA)) }},
			{"name of a cluster", tlsCall{host: "outbound_.18443_._.web.apps.example.com"}, func(a tlsAnswer) error { return errors.Join(routed(a), keyIs(a, x509.RSA)) }},
			{"two certificates", tlsCall{host: "both.example.com"}, func(a tlsAnswer) error { return errors.Join(served(a), keyIs(a, x509.ECDSA)) }},
			{"two certificates up to TLS 1.2, client without ECDSA", tlsCall{host: "both-older.example.com", modify: func(c *tls.Config) {
				c.CipherSuites = []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
			}}, func(a tlsAnswer) error { return errors.Join(served(a), keyIs(a, x509.RSA)) }},
			{"version and cipher suite", tlsCall{host: "older.example.com"}, func(a tlsAnswer) error {
				if err := served(a); err != nil {
					return err
				}
				if a.state.Version != tls.VersionTLS12 || a.state.CipherSuite != tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 {
					return fmt.Errorf("version %x, suite %x", a.state.Version, a.state.CipherSuite)
				}
				return nil
			}},
			{"too new a version", tlsCall{host: "older.example.com", modify: func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 }}, refused},
			{"missing Secret", tlsCall{host: "missing.example.com"}, refused},
			{"Secret of another namespace", tlsCall{host: "foreign.example.com"}, refused},
			{"first Gateway of a host", tlsCall{host: "simple.example.com"}, func(a tlsAnswer) error { return keyIs(a, x509.ECDSA) }},
			{"any server name", tlsCall{host: "anything.example.com", port: "8444"}, served},
		} {
			if row.call.port == "" {
				row.call.port = "8443"
			}
			if err := row.want(row.call.send(t)); err != nil {
				t.Errorf("%s: %v", row.name, err)
			}
		}
	})
	t.Run("client of TLS 1.2 without ECDSA", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), "openssl", "s_client", "-connect", net.JoinHostPort(gatewayAt, "8443"), "-servername", "both.example.com",
			"-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Cipher is ECDHE-RSA-AES128-GCM-SHA256") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("HTTP/3", func(t *testing.T) {
		call := tlsCall{port: "8443", host: "simple.example.com"}
		if got := call.send(t); got.altSvc != `h3=":443"; ma=86400` {
			t.Errorf("over TCP: header alt-svc %q of %+v", got.altSvc, got)
		}
		if got := (tlsCall{port: "8443", host: "mutual.example.com", client: client.client(t)}).send(t); got.altSvc != "" {
			t.Errorf("a server that asks for certificates of clients announces %q", got.altSvc)
		}
		client3 := startHTTP3Client(t, dir, simple.roots)
		if got := requested(t, http3Client+"/a", "simple.example.com"); got.body != `/a of simple.example.com, certificate ""` {
			t.Errorf("over HTTP/3: %+v", got)
		}
		if got := requested(t, http3Client+"/a", "mutual.example.com"); got.status != http.StatusServiceUnavailable {
			t.Errorf("a server that asks for certificates of clients, over HTTP/3: %+v", got)
		}
		const connections = "cluster.simple.upstream_cx_http3_total"
		if stats := client3.Stats(connections); stats[connections] != 1 {
			t.Errorf("connections with HTTP/3: %v, want 1", stats)
		}
		replace(t, config, strings.ReplaceAll(strings.ReplaceAll(gatewayMesh, "FILES", files), ", {name: http3, protocol: UDP, port: 443, targetPort: 8443}", ""))
		eventually(t, "the Service has no UDP port", func() error {
			if got := call.send(t); got.status == 0 || got.altSvc != "" {
				return fmt.Errorf("header alt-svc %q of %+v", got.altSvc, got)
			}
			return nil
		})
	})
	t.Run("Secrets change", func(t *testing.T) {
		call := tlsCall{port: "8443", host: "missing.example.com"}
		replace(t, filepath.Join(mesh, "cluster1", "late.yaml"), rsa.secret("edge", "missing", nil))
		eventually(t, "the missing Secret arrives", func() error { return keyIs(call.send(t), x509.RSA) })
		replace(t, filepath.Join(mesh, "cluster1", "late.yaml"), simple.secret("edge", "missing", nil))
		eventually(t, "the Secret is replaced", func() error { return keyIs(call.send(t), x509.ECDSA) })
	})
}

// http3Client is the address of an Envoy that passes requests on to the gateway over HTTP/3.
const http3Client = "http://127.3.0.4:18080"

// startHTTP3Client starts that Envoy, which verifies the gateway by roots.
func startHTTP3Client(t *testing.T, dir string, roots []byte) *envoy.Proxy {
	t.Helper()
	replace(t, filepath.Join(dir, "http3-roots.pem"), string(roots))
	var hosts, clusters strings.Builder
	for _, name := range []string{"simple", "mutual"} {
		fmt.Fprintf(&hosts, `
            - {name: %[1]s, domains: [%[1]s.example.com], routes: [{match: {prefix: /}, route: {cluster: %[1]s}}]}`, name)
		fmt.Fprintf(&clusters, `
  - name: %[1]s
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http3_protocol_options: {}}
    load_assignment:
      cluster_name: %[1]s
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {protocol: UDP, address: %[2]s, port_value: 8443}}}}]}]
    transport_socket:
      name: envoy.transport_sockets.quic
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.quic.v3.QuicUpstreamTransport
        upstream_tls_context:
          sni: %[1]s.example.com
          common_tls_context: {validation_context: {trusted_ca: {filename: %[3]s/http3-roots.pem}}}`, name, gatewayAt, dir)
	}
	bootstrap := filepath.Join(dir, "http3-client.yaml")
	replace(t, bootstrap, `static_resources:
  listeners:
  - address: {socket_address: {address: 127.3.0.4, port_value: 18080}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: client
          route_config:
            virtual_hosts:`+hosts.String()+`
          http_filters:
          - {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:`+clusters.String()+"\n")
	return envoy.Start(t, bootstrap)
}

// servesTLS is serves with TLS.
func servesTLS(t *testing.T, at string, config *tls.Config, handler http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	servesTLSOn(t, l, config, handler)
}

// servesTLSOn is servesTLS on a listener.
func servesTLSOn(t *testing.T, l net.Listener, config *tls.Config, handler http.HandlerFunc) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener, server.TLS = l, config
	server.StartTLS()
	t.Cleanup(server.Close)
}

// keyIs checks the kind of key of the server.
func keyIs(a tlsAnswer, want x509.PublicKeyAlgorithm) error {
	if a.server == nil {
		return a.err
	}
	if got := a.server.PublicKeyAlgorithm; got != want {
		return fmt.Errorf("the certificate has a key of kind %v, want %v", got, want)
	}
	return nil
}
