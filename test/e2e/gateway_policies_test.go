package e2e

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/test/harness"
)

// protectedGateway has servers that accept some certificates of clients, and policies.
const protectedGateway = `
apiVersion: v1
kind: Pod
metadata: {name: ingress, namespace: edge, labels: {istio: ingress}}
spec: {serviceAccountName: ingress, containers: [{name: proxy}]}
status: {podIP: 10.11.0.9, phase: Running}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 8880, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 8443, name: mutual, protocol: HTTPS}, hosts: [mutual.example.com], tls: {mode: MUTUAL, credentialName: mutual}}
  - {port: {number: 8443, name: spki, protocol: HTTPS}, hosts: [spki.example.com], tls: {mode: MUTUAL, credentialName: mutual, verifyCertificateSpki: ["%[2]s"]}}
  - {port: {number: 8443, name: hash, protocol: HTTPS}, hosts: [hash.example.com], tls: {mode: MUTUAL, credentialName: mutual, verifyCertificateHash: ["%[3]s"]}}
  - port: {number: 8443, name: crl, protocol: HTTPS}
    hosts: [crl.example.com]
    tls: {mode: MUTUAL, serverCertificate: %[4]s/cert-chain.pem, privateKey: %[4]s/key.pem, caCertificates: %[4]s/ca.pem, caCrl: %[4]s/crl.pem}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: edge}
spec: {hosts: ["*"], gateways: [shop], http: [{route: [{destination: {host: app.test}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: app, namespace: edge}
spec:
  hosts: [app.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: %[1]s}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: refused, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingress}}
  action: DENY
  rules:
  - from: [{source: {remoteIpBlocks: [203.0.113.0/24]}}]
  - to: [{operation: {hosts: [admin.example.com]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: permitted, namespace: edge}
spec:
  selector: {matchLabels: {istio: ingress}}
  rules: [{to: [{operation: {methods: [GET]}}]}]
`

// TestGatewayPolicies: policies hold at a gateway, by the address of the client behind trusted
// proxies, and servers accept the certificates that they pin and that are not revoked.
func TestGatewayPolicies(t *testing.T) {
	dir := harness.ShortDir(t)
	servers, clients := authority(t, "servers"), authority(t, "clients")
	server := issue(t, servers, certs.ECDSAP256, "*.example.com")
	one, other := issue(t, clients, certs.ECDSAP256, "one.example.com"), issue(t, clients, certs.ECDSAP256, "other.example.com")
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Forwarded-Client-Cert"))
	}))
	t.Cleanup(app.Close)

	files := filepath.Join(dir, "files")
	mesh := filepath.Join(dir, "mesh")
	for _, d := range []string{files, filepath.Join(mesh, "cluster1"), filepath.Join(mesh, "cluster2")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	roots := certs.EncodeCerts(clients.Cert)
	for name, text := range map[string]string{
		"cert-chain.pem": string(server.chain), "key.pem": string(server.key), "ca.pem": string(roots),
		"crl.pem": revocations(t, clients, time.Now().Add(time.Hour), leafOf(t, other)),
	} {
		replace(t, filepath.Join(files, name), text)
	}
	leaf := leafOf(t, one)
	spki, hash := sha256.Sum256(leaf.RawSubjectPublicKeyInfo), sha256.Sum256(leaf.Raw)
	replace(t, filepath.Join(mesh, "cluster1", "gateway.yaml"), fmt.Sprintf(protectedGateway, app.URL[strings.LastIndex(app.URL, ":")+1:],
		base64.StdEncoding.EncodeToString(spki[:]), hex.EncodeToString(hash[:]), files)+server.secret("edge", "mutual", roots))
	topology := func(settings string) {
		replace(t, filepath.Join(mesh, "cluster1", "mesh.yaml"),
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'defaultConfig: {gatewayTopology: {"+settings+"}}'}\n")
	}
	topology("")
	_, secure := controlPlane(t, dir, mesh)
	gateway := proxy{"ingress", "router", "edge", "ingress", "10.11.0.9", map[string]string{"istio": "ingress"}}
	defer gateway.start(t, dir, secure)()

	becomes := func(what string, want int, lines string) {
		t.Helper()
		eventually(t, what, func() error {
			got, _, err := rawRequest(gatewayAt+":8880", lines)
			if got != want {
				return fmt.Errorf("status %d, want %d: %w", got, want, err)
			}
			return nil
		})
	}
	const get = "GET / HTTP/1.1\r\nHost: shop.example.com\r\n"
	becomes("a permitted request", 200, get)
	becomes("a method that no rule permits", 403, "PUT / HTTP/1.1\r\nHost: shop.example.com\r\n")
	becomes("a refused host", 403, "GET / HTTP/1.1\r\nHost: Admin.example.com:8880\r\n")
	becomes("an address that the client claims", 200, get+"x-forwarded-for: 203.0.113.9\r\n")

	topology("numTrustedProxies: 1")
	becomes("an address behind one proxy", 403, get+"x-forwarded-for: 203.0.113.9\r\n")
	becomes("an address that the client claims to the proxy", 200, get+"x-forwarded-for: 203.0.113.9, 198.51.100.1\r\n")
	topology("numTrustedProxies: 2")
	becomes("an address behind two proxies", 403, get+"x-forwarded-for: 203.0.113.9, 198.51.100.1\r\n")

	topology("proxyProtocol: {}")
	becomes("a refused address by the PROXY protocol", 403, "PROXY TCP4 203.0.113.9 127.3.0.1 1000 8880\r\n"+get)
	becomes("another address by the PROXY protocol", 200, "PROXY TCP4 198.51.100.1 127.3.0.1 1000 8880\r\n"+get+"x-forwarded-for: 203.0.113.9\r\n")
	becomes("no header of the PROXY protocol", 0, get)

	topology("")
	becomes("without the PROXY protocol", 200, get)
	for host, refused := range map[string]bool{"mutual.example.com": false, "spki.example.com": true, "hash.example.com": true, "crl.example.com": true} {
		eventually(t, "certificates at "+host, func() error {
			good := tlsCall{port: "8443", host: host, client: one.client(t)}.send(t)
			bad := tlsCall{port: "8443", host: host, client: other.client(t)}.send(t)
			if good.err != nil || good.status != http.StatusOK || (bad.err != nil) != refused {
				return fmt.Errorf("the good certificate: status %d, %w; the other: status %d, %w", good.status, good.err, bad.status, bad.err)
			}
			return nil
		})
	}

	const forged = "By=forged"
	for _, row := range []struct{ details, plain, mutual string }{
		{"SANITIZE_SET", "", "Hash="},
		{"SANITIZE", "", ""},
		{"FORWARD_ONLY", "", forged},
		{"APPEND_FORWARD", "", forged + ",Hash="},
		{"ALWAYS_FORWARD_ONLY", forged, forged},
	} {
		topology("forwardClientCertDetails: " + row.details)
		eventually(t, row.details, func() error {
			_, plain, err := rawRequest(gatewayAt+":8880", get+"x-forwarded-client-cert: "+forged+"\r\n")
			if err != nil || plain != row.plain {
				return fmt.Errorf("plaintext: %q, %w", plain, err)
			}
			got := tlsCall{port: "8443", host: "mutual.example.com", client: one.client(t), header: http.Header{"X-Forwarded-Client-Cert": {forged}}}.send(t)
			if got.err != nil || !strings.HasPrefix(got.body, row.mutual) || row.mutual == "" && got.body != "" {
				return fmt.Errorf("mutual TLS: %q, %w", got.body, got.err)
			}
			return nil
		})
	}
}

// leafOf returns the certificate of a pair.
func leafOf(t *testing.T, p keyPair) *x509.Certificate {
	t.Helper()
	return p.client(t).Leaf
}

// misdirectingGateway has a server with a wildcard, and one of a host that demands certificates.
const misdirectingGateway = `
apiVersion: v1
kind: Pod
metadata: {name: ingress, namespace: edge, labels: {istio: ingress}}
spec: {serviceAccountName: ingress, containers: [{name: proxy}]}
status: {podIP: 10.11.0.9, phase: Running}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 8443, name: any, protocol: HTTPS}, hosts: ["*.example.com"], tls: {mode: SIMPLE, credentialName: mutual}}
  - {port: {number: 8443, name: mutual, protocol: HTTPS}, hosts: [mutual.example.com], tls: {mode: MUTUAL, credentialName: mutual}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: edge}
spec: {hosts: ["*.example.com"], gateways: [shop], http: [{route: [{destination: {host: app.test}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: secret, namespace: edge}
spec: {hosts: [mutual.example.com], gateways: [shop], http: [{route: [{destination: {host: app.test}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: app, namespace: edge}
spec:
  hosts: [app.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: %s}]
  endpoints: [{address: 127.0.0.1}]
---
`

// TestMisdirectedRequests: a client cannot avoid the certificates that a server demands by the server
// name of another one of the same port.
func TestMisdirectedRequests(t *testing.T) {
	dir := harness.ShortDir(t)
	servers, clients := authority(t, "servers"), authority(t, "clients")
	server, one := issue(t, servers, certs.ECDSAP256, "*.example.com"), issue(t, clients, certs.ECDSAP256, "one.example.com")
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(app.Close)
	mesh := filepath.Join(dir, "mesh")
	for _, d := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	replace(t, filepath.Join(mesh, "cluster1", "gateway.yaml"),
		fmt.Sprintf(misdirectingGateway, app.URL[strings.LastIndex(app.URL, ":")+1:])+server.secret("edge", "mutual", certs.EncodeCerts(clients.Cert)))
	_, secure := controlPlane(t, dir, mesh)
	gateway := proxy{"ingress", "router", "edge", "ingress", "10.11.0.9", map[string]string{"istio": "ingress"}}
	defer gateway.start(t, dir, secure)()
	call := func(serverName, host string) tlsAnswer {
		return tlsCall{port: "8443", host: host, modify: func(c *tls.Config) { c.ServerName = serverName }}.send(t)
	}
	for host, client := range map[string]*tls.Certificate{"other.example.com": nil, "mutual.example.com": one.client(t)} {
		eventually(t, "the gateway serves "+host, func() error {
			if a := (tlsCall{port: "8443", host: host, client: client}).send(t); a.err != nil || a.status != http.StatusOK {
				return fmt.Errorf("status %d, %w", a.status, a.err)
			}
			return nil
		})
	}
	for _, host := range []string{"mutual.example.com", "MUTUAL.example.com", "mutual.example.com:8443"} {
		if a := call("other.example.com", host); a.err != nil || a.status != http.StatusMisdirectedRequest {
			t.Errorf("%s on a connection to other.example.com: status %d, %v, want 421", host, a.status, a.err)
		}
	}
	for _, serverName := range []string{"mutual.example.com", "Mutual.Example.com", "x.mutual.example.org", ""} {
		if a := call(serverName, "mutual.example.com"); a.err == nil {
			t.Errorf("mutual.example.com on a connection to %q without a certificate: status %d", serverName, a.status)
		}
	}
	if a := call("other.example.com", "mutual.example.com."); a.status == http.StatusOK {
		t.Error("a dot at the end of the host avoids the certificate")
	}
}

// rawRequest sends lines, and returns the status of the answer, 0 if there is none, and its body.
func rawRequest(addr, lines string) (code int, body string, err error) {
	conn, err := net.DialTimeout("tcp", addr, deadline)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(conn, lines+"Connection: close\r\n\r\n"); err != nil {
		return 0, "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}
