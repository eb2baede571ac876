package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// mtlsMesh has a workload with three ports, two of HTTP and one of TCP, for one server, a port for a
// server that sends first, and one for a server with TLS.
const mtlsMesh = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: helloworld, namespace: sample}
spec:
  workloadSelector: {labels: {app: helloworld}}
  ingress:
  - {bind: 127.3.0.1, port: {number: 5000, protocol: HTTP, name: http}, defaultEndpoint: '%[1]s'}
  - {bind: 127.3.0.1, port: {number: 5001, protocol: HTTP, name: http-other}, defaultEndpoint: '%[1]s'}
  - {bind: 127.3.0.1, port: {number: 5002, protocol: TCP, name: tcp}, defaultEndpoint: '%[1]s'}
  - {bind: 127.3.0.1, port: {number: 5003, protocol: MYSQL, name: mysql}, defaultEndpoint: '%[2]s'}
  - {bind: 127.3.0.1, port: {number: 5004, protocol: TLS, name: tls}, defaultEndpoint: '%[3]s'}
`

// mtlsPolicy returns a PeerAuthentication.
func mtlsPolicy(namespace, name, spec string) string {
	return fmt.Sprintf("---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", name, namespace, spec)
}

// callerOf is how a client calls a port: in plaintext without a configuration.
type callerOf struct{ config *tls.Config }

// reaches reports whether a request on a new connection reaches the application at an address.
func (c callerOf) reaches(address string) bool {
	conn, err := net.DialTimeout("tcp", address, deadline)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	if c.config != nil {
		conn = tls.Client(conn, c.config)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: helloworld\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// mtlsCallers returns callers by name: in plaintext, with mTLS of the mesh whose authorities are in
// a directory, without a certificate and with a stranger's.
func mtlsCallers(t *testing.T, dir string) map[string]callerOf {
	t.Helper()
	certificate := func(name, ca string) tls.Certificate {
		out := filepath.Join(dir, name)
		mustRun(t, "certs", "leaf", "--ca", ca, "--namespace", "sample", "--service-account", "client", "--out", out)
		pair, err := tls.LoadX509KeyPair(filepath.Join(out, "cert-chain.pem"), filepath.Join(out, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	mustRun(t, "certs", "root-ca", "--out", filepath.Join(dir, "other-root"))
	own, stranger := certificate("own", filepath.Join(dir, "ca", "cluster1")), certificate("stranger", filepath.Join(dir, "other-root"))
	over := func(pairs ...tls.Certificate) callerOf {
		config := dial.UnverifiedTLSConfig("helloworld")
		config.Certificates, config.NextProtos = pairs, []string{"istio"}
		return callerOf{config}
	}
	return map[string]callerOf{"plain": {}, "mTLS": over(own), "none": over(), "stranger": over(stranger)}
}

// The callers that the modes permit.
const strict, permissive, disable = "mTLS", "mTLS plain", "plain"

// eventuallyReach waits until exactly the permitted callers reach the application at an address.
func eventuallyReach(t *testing.T, what, address string, callers map[string]callerOf, permitted string) {
	t.Helper()
	eventually(t, what+", "+address, func() error {
		for name, c := range callers {
			if reaches, want := c.reaches(address), slices.Contains(strings.Fields(permitted), name); reaches != want {
				return fmt.Errorf("%s reaches the application: %t, want %t", name, reaches, want)
			}
		}
		return nil
	})
}

// TestMTLSModes changes the modes of the ports of a workload that a real Envoy serves, and calls
// each port with each caller.
func TestMTLSModes(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh := helloworldMesh(t, "127.0.0.1:1")
	first, err := net.Listen("tcp", "127.0.0.1:0")
	servesEach(t, first, err, sendsFirst("banner"))
	secure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	servesTLSOn(t, secure, nil, http.NotFound)
	replace(t, filepath.Join(mesh, "cluster1", "services.yaml"), fmt.Sprintf(mtlsMesh, echoServer(t), first.Addr(), secure.Addr()))
	policies := filepath.Join(mesh, "cluster1", "policies.yaml")
	replace(t, policies, mtlsPolicy("istio-system", "default", "mtls: {mode: STRICT}"))
	_, server := controlPlane(t, dir, mesh)
	callers := mtlsCallers(t, dir)
	p := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
	defer p.start(t, dir, server, "ISTIO_META_INTERCEPTION_MODE=NONE")()

	const workload = "selector: {matchLabels: {app: helloworld}}, "
	for _, tc := range []struct{ name, policies, first, second, third string }{
		{"mesh", mtlsPolicy("istio-system", "default", "mtls: {mode: STRICT}"), strict, strict, strict},
		{"permissive", mtlsPolicy("istio-system", "default", "mtls: {mode: PERMISSIVE}"), permissive, permissive, permissive},
		{
			"namespace over mesh",
			mtlsPolicy("istio-system", "default", "mtls: {mode: STRICT}") + mtlsPolicy("sample", "default", "mtls: {mode: DISABLE}"),
			disable, disable, disable,
		},
		{
			"workload over namespace",
			mtlsPolicy("sample", "default", "mtls: {mode: DISABLE}") + mtlsPolicy("sample", "own", workload+"mtls: {mode: STRICT}"),
			strict, strict, strict,
		},
		{
			"ports over workload",
			mtlsPolicy("sample", "own", workload+"mtls: {mode: STRICT}, portLevelMtls: {5000: {mode: DISABLE}, 5001: {mode: PERMISSIVE}, 5002: {mode: UNSET}}"),
			disable, permissive, strict,
		},
		{
			"other ports",
			mtlsPolicy("sample", "own", workload+"portLevelMtls: {5000: {mode: STRICT}, 5002: {mode: DISABLE}}"),
			strict, permissive, disable,
		},
		{
			"a mistake keeps the last version",
			mtlsPolicy("sample", "own", workload+"portLevelMtls: {70000: {mode: DISABLE}}"),
			strict, permissive, disable,
		},
	} {
		replace(t, policies, tc.policies)
		for port, want := range map[string]string{"5000": tc.first, "5001": tc.second, "5002": tc.third} {
			eventuallyReach(t, tc.name, net.JoinHostPort("127.3.0.1", port), callers, want)
		}
	}

	replace(t, policies, mtlsPolicy("istio-system", "default", "mtls: {mode: DISABLE}"))
	eventually(t, "a server that sends first", func() error { return speaksFirst("127.3.0.1:5003", "banner") })
	eventually(t, "TLS of the application", func() error { return ownTLS("127.3.0.1:5004") })
}

// ownTLS returns why a server of servesTLSOn does not complete a handshake at an address.
func ownTLS(address string) error {
	conn, err := (&net.Dialer{Timeout: deadline}).Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	secure := tls.Client(conn, dial.UnverifiedTLSConfig("example.com"))
	if err := secure.Handshake(); err != nil {
		return err
	}
	if got := secure.ConnectionState().PeerCertificates[0]; got.VerifyHostname("example.com") != nil {
		return fmt.Errorf("the certificate is of %s", got.Subject)
	}
	return nil
}

// speaksFirst returns why the server at an address does not send a text to a client that waits.
func speaksFirst(address, text string) error {
	conn, err := (&net.Dialer{Timeout: deadline}).Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // a policy may not apply yet
	if got, err := io.ReadAll(conn); string(got) != text {
		return fmt.Errorf("%q, error %w", got, err)
	}
	return nil
}
