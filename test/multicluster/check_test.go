package multicluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/test/kube"
)

// faultyObjects are faults of the configuration that the API server accepts: a script with a syntax error,
// keys that nothing serves, and Secrets of a gateway.
const faultyObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: ingress}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ingress, namespace: ingress}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: syntax, namespace: sample}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch: {operation: INSERT_BEFORE, value: {name: script, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_request(h"}}}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: sample}
spec: {jwtRules: [{issuer: https://issuer.example, jwksUri: "http://127.0.0.1:1/keys"}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: users, namespace: ingress}
spec: {rules: [{from: [{source: {requestPrincipals: ["https://issuer.example/*"]}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ingress-1, namespace: ingress, labels: {istio: ingressgateway}}
spec: {nodeName: none, serviceAccountName: ingress, containers: [{name: istio-proxy, image: "registry.example/proxy:1"}]}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/basic-auth
metadata: {name: password, namespace: ingress}
stringData: {username: a, password: b}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: sample}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 1443, name: https-1, protocol: HTTPS}, hosts: ["1.example"], tls: {mode: SIMPLE, credentialName: missing}}
  - {port: {number: 2443, name: https-2, protocol: HTTPS}, hosts: ["2.example"], tls: {mode: SIMPLE, credentialName: password}}
  - {port: {number: 3443, name: https-3, protocol: HTTPS}, hosts: ["3.example"], tls: {mode: SIMPLE, credentialName: mixed}}
  - {port: {number: 4443, name: https-4, protocol: HTTPS}, hosts: ["4.example"], tls: {mode: SIMPLE, credentialName: expired}}
  - {port: {number: 5443, name: https-5, protocol: HTTPS}, hosts: ["5.example"], tls: {mode: SIMPLE, credentialName: good}}
`

// check runs meshctl check, and returns its lines without the spaces of columns.
func (m *mesh) check(t *testing.T, kubeconfig string, args ...string) string {
	t.Helper()
	cmd := exec.Command(meshctl, append([]string{"check", "--kubeconfig", kubeconfig}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir}
	began := time.Now()
	err := cmd.Run()
	t.Logf("meshctl check %s took %s, of which the program computed %s", args, time.Since(began).Round(time.Millisecond), cmd.ProcessState.UserTime())
	if err == nil {
		t.Errorf("meshctl check %s succeeds, although there are faults", args)
	}
	return regexp.MustCompile(` {2,}`).ReplaceAllString(out.String(), " | ")
}

// TestCheckFindsFaults: check names the cause and the fix of each fault that the control planes, the
// Secrets of gateways and the servers of keys show.
func TestCheckFindsFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	m := newMesh(t, "127.11.5")
	config := kube.MergedKubeconfig(t, m.east.Cluster, m.west.Cluster)
	var definitions []string
	for doc := range strings.SplitSeq(m.run(t, "manifest", "generate", "--crds"), "\n---\n") {
		if strings.Contains(doc, "kind: CustomResourceDefinition") {
			definitions = append(definitions, doc)
		}
	}
	m.east.Kubectl(t, strings.Join(definitions, "\n---\n"), "apply", "--server-side", "-f", "-")
	m.east.Kubectl(t, "", "wait", "--for", "condition=established", "crd", "--all")
	m.east.Apply(t, faultyObjects+secrets(t))
	m.east.Kubectl(t, `{"status": {"phase": "Running", "podIP": "10.1.0.9", "podIPs": [{"ip": "10.1.0.9"}]}}`,
		"-n", "ingress", "patch", "pod", "ingress-1", "--subresource", "status", "--type", "merge", "--patch-file", "/dev/stdin")
	refuseListeners(t, m.east)
	m.otherPlane(t, "canary")
	m.run(t, "multicluster", "drain", "west", "--force", "--kubeconfig", config, "--context", "east,west")

	kubectl := "kubectl --kubeconfig " + config + " --context east"
	wants := []string{
		`Error | east | EnvoyFilter sample/syntax | LDS 0.0.0.0_5000 is refused by 1 proxy (client.sample): script load error: ')' expected; near '<eof>' | correct it: ` + kubectl + " -n sample edit envoyfilter syntax",
		`Error | east | RequestAuthentication sample/tokens | MSH0124 spec.jwtRules[0].jwksUri: the control plane cannot fetch the keys, http://127.0.0.1:1/keys: dial tcp 127.0.0.1:1: connect: connection refused: requests with its tokens get status 401 | Correct ` + "`jwksUri` or `issuer`, or make the server reachable from the control plane. Or write the keys into `jwks`: " + kubectl + " -n sample edit requestauthentication tokens",
		`Error | east | AuthorizationPolicy ingress/users | MSH0125 spec.rules[0].from[0].source.requestPrincipals[0]: "https://issuer.example/*" matches no request: no RequestAuthentication applies to the workloads of the policy, so no request has an accepted token | Correct the issuer, or add a RequestAuthentication with it for the workloads: ` + kubectl + " -n ingress edit authorizationpolicy users",
		`Error | east | Gateway sample/public | IST0101 spec.servers[0].tls.credentialName: there is no Secret ingress/missing in cluster east, where the gateway is; a Secret in namespace sample, where the Gateway is, has no effect | ` + kubectl + " -n ingress create secret tls missing --cert",
		`Error | east | Gateway sample/public | IST0161 spec.servers[1].tls.credentialName: Secret ingress/password of cluster east has no certificate: its type is kubernetes.io/basic-auth, want kubernetes.io/tls or Opaque | ` + kubectl,
		`IST0161 spec.servers[2].tls.credentialName: Secret ingress/mixed of cluster east has no certificate: data[tls.key]: is not the key of the certificate`,
		`IST0161 spec.servers[3].tls.credentialName: the certificate in Secret ingress/expired of cluster east expired at `,
		`IST0161 spec.selector: ServiceAccount ingress/ingress of its workload ingress-1 in cluster east may not list the Secrets of its namespace, so the gateway gets no certificate | ` + kubectl + " -n ingress create role",
		`Info | west | cluster west | is drained by the control planes in west: their proxies call its endpoints only if no other cluster has healthy ones | meshctl multicluster undrain west --kubeconfig ` + config + " --context west\n",
		`| east | control plane `,
		`(revision canary) | it calls the cluster other, but control plane `,
		`(revision canary) | its mesh ID is mesh2, but control plane `,
		`(revision canary) | its trust domain is other.example, but control plane `,
		`(revision canary) | its CA has the root `,
	}
	eventually(t, "check finds all faults", func() error {
		out := m.check(t, config, "--context", "east,west")
		for _, want := range wants {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no %q in\n%s", want, out)
			}
		}
		if strings.Contains(out, `\n`) || strings.Contains(out, "servers[4].tls") || strings.Contains(out, "(revision default) | ") {
			return fmt.Errorf("a line end, or a fault of a good Secret or control plane:\n%s", out)
		}
		return nil
	})
	for _, command := range []string{"role ingress-secrets --verb=get,list,watch --resource=secrets", "rolebinding ingress-secrets --role=ingress-secrets --serviceaccount=ingress:ingress"} {
		m.east.Kubectl(t, "", append([]string{"-n", "ingress", "create"}, strings.Fields(command)...)...)
	}
	eventually(t, "the account may read Secrets", func() error {
		if out := m.check(t, config, "--context", "east"); strings.Contains(out, "ServiceAccount ingress/ingress") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	runCredentialFixes(t, m, m.check(t, config, "--context", "east"))
	eventually(t, "the gateway's Secrets are mended", func() error {
		if out := m.check(t, config, "--context", "east"); strings.Contains(out, "IST0161") || strings.Contains(out, "no Secret") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	out := m.check(t, config, "--context", "east", "--as", "system:serviceaccount:sample:default")
	if !strings.Contains(out, "may not") {
		t.Errorf("a user without rights is not told:\n%s", out)
	}
}

// runCredentialFixes runs the commands that the findings about Secrets of gateways print, with real files.
func runCredentialFixes(t *testing.T, m *mesh, found string) {
	t.Helper()
	files := []string{}
	for placeholder, key := range map[string]string{"CERTIFICATE_FILE": "tls.crt", "KEY_FILE": "tls.key", "CA_FILE": "tls.crt"} {
		path := filepath.Join(t.TempDir(), placeholder)
		text := m.east.Kubectl(t, "", "-n", "ingress", "get", "secret", "good", "-o", `go-template={{index .data "`+key+`" | base64decode}}`)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, placeholder, path)
	}
	ran := 0
	for line := range strings.Lines(found) {
		_, fix, ok := strings.Cut(line, " | kubectl ")
		if !ok || !strings.Contains(line, "tls.credentialName: ") {
			continue
		}
		fix = strings.NewReplacer(files...).Replace("kubectl " + fix)
		cmd := exec.Command("sh", "-c", "set -e; "+fix)
		cmd.Env = append(os.Environ(), "PATH="+kube.Bin(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s%v\n%s", fix, err, out)
		}
		ran++
	}
	if ran != 4 {
		t.Errorf("%d of 4 commands in\n%s", ran, found)
	}
}

// secrets returns a Secret with the key of another certificate, one with an expired certificate and a
// good one.
func secrets(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	add := func(name string, cert *certs.Authority, key *certs.Authority) {
		text, err := certs.EncodeKey(key.Key)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n{apiVersion: v1, kind: Secret, type: Opaque, metadata: {name: %s, namespace: ingress}, stringData: {tls.crt: %q, tls.key: %q}}\n",
			name, certs.EncodeCerts(cert.Cert), text)
	}
	good, other := certstest.NewRoot(t), certstest.NewRoot(t)
	add("mixed", other, good)
	add("good", good, good)
	began := time.Now().Add(-48 * time.Hour)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: began, NotAfter: began.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, other.Key.Public(), other.Key)
	if err != nil {
		t.Fatal(err)
	}
	expired := *other
	if expired.Cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	add("expired", &expired, other)
	return out.String()
}

// refuseListeners connects a proxy that refuses each listener with the text of an Envoy.
func refuseListeners(t *testing.T, p *plane) {
	t.Helper()
	conn, err := grpc.NewClient(p.plain(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const typeURL = "type.googleapis.com/envoy.config.listener.v3.Listener"
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.9.0.2~client.sample~sample.svc.cluster.local"}, TypeUrl: typeURL,
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: resp.GetNonce()}
			for _, r := range resp.GetResources() {
				if r.GetName() == "0.0.0.0_5000" && bytes.Contains(r.GetResource().GetValue(), []byte("envoy_on_request")) {
					answer.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "Error adding/updating listener(s) 0.0.0.0_5000: script load error: ')' expected\nnear '<eof>'\n"}
				}
			}
			if stream.Send(answer) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; _ = conn.Close() })
}

// otherPlane runs a second control plane in the cluster east, of another revision, that belongs to
// another mesh by all that it has.
func (m *mesh) otherPlane(t *testing.T, revision string) {
	t.Helper()
	m.run(t, "certs", "root-ca", "--out", filepath.Join(m.dir, "root-"+revision))
	m.run(t, "certs", "intermediate-ca", "--root", filepath.Join(m.dir, "root-"+revision), "--out", filepath.Join(m.dir, "ca-"+revision), "other")
	address := strings.TrimSuffix(m.east.ip, "1") + "9"
	t.Cleanup(m.background(t, "serve-"+revision, nil, "serve", "--cluster-id", "other", "--revision", revision, "--mesh-id", "mesh2", "--trust-domain", "other.example",
		"--kubeconfig", m.east.kubeconfig, "--ca-dir", filepath.Join(m.dir, "ca-"+revision, "other"), "--system-namespace", "istio-system",
		"--grpc-addr", net.JoinHostPort(address, "15010"), "--secure-grpc-addr", net.JoinHostPort(address, "15012"),
		"--http-addr", net.JoinHostPort(address, "8080"), "--monitoring-addr", net.JoinHostPort(address, "15014")))
}
