package server

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
)

// TestCallersOfWebhooks: an API server is known by the addresses of the Service kubernetes in namespace
// default of the local cluster, not by a Service or a ServiceEntry of another namespace or cluster.
func TestCallersOfWebhooks(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		if err := os.WriteFile(filepath.Join(c.ConfigDir, "kubernetes.yaml"), []byte(kubernetesServices), 0o600); err != nil {
			t.Fatal(err)
		}
		c.RemoteDirs = []ClusterDir{{"cluster2", t.TempDir()}}
		text := strings.ReplaceAll(kubernetesServices, "10.9.0.1]", "10.9.0.9]")
		if err := os.WriteFile(filepath.Join(c.RemoteDirs[0].Dir, "kubernetes.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	waitFor(t, "the address of the API server", func() bool { return s.fromAPIServer(&http.Request{RemoteAddr: "10.9.0.1:443"}) })
	for from, want := range map[string]bool{
		"10.9.0.1:1": true, "[::ffff:10.9.0.1]:1": true, "127.0.0.1:1": true, "[::1]:1": true,
		"10.9.0.2:1": false, "10.9.0.3:1": false, "10.9.0.4:1": false, "10.9.0.9:1": false, "": false, "@": false,
	} {
		if got := s.fromAPIServer(&http.Request{RemoteAddr: from}); got != want {
			t.Errorf("%s: %t, want %t", from, got, want)
		}
	}
}

const kubernetesServices = `apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443, targetPort: 6443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443, protocol: TCP}]
endpoints: [{addresses: [10.9.0.1], conditions: {ready: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: tenant}
spec: {clusterIP: 10.96.0.2, ports: [{name: https, port: 443, targetPort: 6443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: tenant, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443, protocol: TCP}]
endpoints: [{addresses: [10.9.0.2], conditions: {ready: true}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: kubernetes, namespace: tenant}
spec:
  hosts: [kubernetes.default.svc.cluster.local]
  resolution: STATIC
  ports: [{name: https, number: 443, protocol: HTTPS}]
  endpoints: [{address: 10.9.0.3}]
`

// TestClientCertificatesOfWebhooks: with roots for clients, the webhooks refuse callers without a
// certificate that leads to them.
func TestClientCertificatesOfWebhooks(t *testing.T) {
	t.Parallel()
	root, other := certstest.NewRoot(t), certstest.NewRoot(t)
	s := start(t, func(c *Config) {
		c.HTTPSAddr, c.WebhookClientRoots = "127.0.0.1:0", certs.EncodeCerts(root.Cert)
	})
	ask := func(certificates ...tls.Certificate) error {
		transport := &http.Transport{TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, Certificates: certificates,
		}}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Post("https://"+s.webhooks.Addr().String()+"/validate", "application/json", strings.NewReader("{}"))
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	certificateOf := func(root *certs.Authority) []tls.Certificate {
		return as(t, "example.com", certstest.NewIntermediate(t, root), &domain{root: root}).Certificates
	}
	if err := ask(certificateOf(root)...); err != nil {
		t.Errorf("with a certificate of the root: %v", err)
	}
	for name, certificates := range map[string][]tls.Certificate{"none": nil, "of another root": certificateOf(other)} {
		if err := ask(certificates...); err == nil {
			t.Errorf("%s: the webhooks accept the caller", name)
		}
	}
	if !s.fromAPIServer(&http.Request{RemoteAddr: "10.9.0.2:1"}) {
		t.Error("a caller with a certificate is not known")
	}
}
