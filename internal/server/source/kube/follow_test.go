package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3" // in an EnvoyFilter
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	"github.com/meshctl/meshctl/test/kube"
)

// crd returns the definition of a resource in some versions, with any fields.
func crd(group, kind, plural string, versions ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %s.%s
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: %[2]s
  scope: Namespaced
  names: {kind: %[3]s, listKind: %[3]sList, plural: %[1]s, singular: %[4]s}
  versions:
`, plural, group, kind, strings.ToLower(kind))
	for i, v := range versions {
		fmt.Fprintf(&b, `  - name: %s
    served: true
    storage: %v
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`, v, i == 0)
	}
	return b.String() + "---\n"
}

const peerAuthentication = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: NS}
spec: {mtls: {mode: STRICT}}
`

// TestInstalledLater: resources are followed as soon as they are installed.
func TestInstalledLater(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: later}}")
	s, r, _ := run(t, c.Config(), func(s *Source) { s.waits.installed = time.Hour })
	r.until("everything", func() bool { return r.synced == 1 })
	definition := crd("security.istio.io", "PeerAuthentication", "peerauthentications", "v1beta1", "v1")
	policy := func() bool { return r.get(snapshot.KindPeerAuthentication, "later", "default") != nil }
	for range 2 {
		c.Apply(t, definition+in("later", peerAuthentication))
		r.until("policy", policy)
		c.Kubectl(t, "", "delete", "crd", "peerauthentications.security.istio.io")
		r.until("no policy", func() bool { return !policy() })
		r.until("not installed", func() bool { return s.resource("peerauthentications.security.istio.io").Cause == CauseNotInstalled })
	}
	// Only in an old version.
	c.Apply(t, crd("security.istio.io", "PeerAuthentication", "peerauthentications", "v1beta1")+
		strings.Replace(in("later", peerAuthentication), "istio.io/v1", "istio.io/v1beta1", 1))
	r.until("policy of an old version", policy)
	// Refused, and good again: the last good version stays.
	c.Apply(t, strings.Replace(strings.Replace(in("later", peerAuthentication), "istio.io/v1", "istio.io/v1beta1", 1), "STRICT}", "STRICT}, portLevelMtls: {80: {mode: STRICT}}", 1))
	r.until("problem", func() bool { return len(s.Status().Problems) == 1 })
	want := "spec.portLevelMtls: needs a selector; its last good version stays in use"
	if got := s.Status().Problems[0]; got.Object != "PeerAuthentication later/default" || !slices.Equal(got.Reasons, []string{want}) || r.now(snapshot.KindPeerAuthentication, "later", "default") == nil {
		t.Errorf("problem %+v", got)
	}
	c.Kubectl(t, "", "-n", "later", "delete", "peerauthentications.v1beta1.security.istio.io", "default")
	r.until("no policy and no problem", func() bool { return !policy() && len(s.Status().Problems) == 0 })
	withoutEffect(t, c)
}

// withoutEffect checks that objects of a kind without effect are reported while they
// exist, and that a missing right to list them is reported.
func withoutEffect(t *testing.T, c *kube.Cluster) {
	t.Helper()
	const name = "backendtlspolicies.gateway.networking.k8s.io"
	s, r, _ := run(t, c.Config(), func(s *Source) { s.waits.installed = time.Hour }) // nothing is looked for
	soon := func(s *Source) { s.waits.installed = 50 * time.Millisecond }
	blind, other, _ := run(t, reader(t, c, "blind", mostRules), soon)
	lister, third, _ := run(t, reader(t, c, "lister", mostRules+`
- {apiGroups: [gateway.networking.k8s.io], resources: [backendtlspolicies], verbs: [list]}`), soon)
	remote, _, _ := run(t, c.Config(), func(s *Source) { s.Configuration = false })
	r.until("everything", func() bool { return r.synced == 1 })
	other.until("not installed", func() bool { return blind.resource(name).Cause == CauseNotInstalled })
	c.Apply(t, crd("gateway.networking.k8s.io", "BackendTLSPolicy", "backendtlspolicies", "v1"))
	other.until("a kind that may not be looked at", func() bool {
		got := blind.resource(name)
		return got.Cause == CauseForbidden && got.Unread && strings.HasPrefix(got.Error,
			"may not list backendtlspolicies.gateway.networking.k8s.io (it is not reported whether there is any BackendTLSPolicy, which has no effect): 403")
	})
	if p := s.Status().Problems; len(p) != 0 {
		t.Errorf("nobody uses it: %+v", p)
	}
	policies := func(names ...string) string {
		var b strings.Builder
		for _, name := range names {
			b.WriteString("{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, metadata: {name: " + name + ", namespace: later}, spec: {}}\n---\n")
		}
		return b.String()
	}
	c.Apply(t, policies("deny", "deny-more"))
	const reason = "has no effect: no proxy uses it to check the backend's certificate"
	is := func(s *Source, names ...string) func() bool {
		return func() bool {
			var got []string
			for _, p := range s.Status().Problems {
				if slices.Equal(p.Reasons, []string{reason}) {
					got = append(got, p.Object)
				}
			}
			return slices.Equal(got, names)
		}
	}
	r.until("two policies", is(s, "BackendTLSPolicy later/deny", "BackendTLSPolicy later/deny-more"))
	third.until("two policies, of a reader that may not watch", is(lister, "BackendTLSPolicy later/deny", "BackendTLSPolicy later/deny-more"))
	c.Kubectl(t, "", "-n", "later", "delete", "backendtlspolicies", "deny")
	r.until("one policy", is(s, "BackendTLSPolicy later/deny-more"))
	third.until("one policy, of a reader that may not watch", is(lister, "BackendTLSPolicy later/deny-more"))
	c.Apply(t, strings.Replace(policies("deny-more"), "spec: {}", "spec: {a: b}", 1)) // is no news
	var many, reported []string
	for i := range maxProblems + 20 {
		many = append(many, fmt.Sprintf("policy-%d", i))
	}
	c.Apply(t, policies(many...))
	known := func(n int64) func() bool {
		return func() bool {
			return s.resource(name).Objects == n && len(s.Status().Problems) == int(min(n, maxProblems))
		}
	}
	r.until("many policies", known(maxProblems+21))
	if n := strings.Count(r.text(), "configuration is not used"); n != maxProblems+1 {
		t.Errorf("%d policies are logged", n)
	}
	for _, p := range s.Status().Problems[:30] {
		reported = append(reported, strings.TrimPrefix(p.Object, "BackendTLSPolicy later/"))
	}
	c.Kubectl(t, "", append([]string{"-n", "later", "delete", "backendtlspolicies"}, reported...)...)
	r.until("fewer policies", known(maxProblems-9))
	c.Kubectl(t, "", "-n", "later", "delete", "backendtlspolicies", "--all")
	r.until("nobody uses it", known(0))
	if p := remote.Status().Problems; len(p) != 0 {
		t.Errorf("configuration of another cluster does not count: %+v", p)
	}
}

// TestServerStops: objects stay while the API server is down, and changes made meanwhile
// arrive when it is back.
func TestServerStops(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, in("default", app))
	s, r, stop := run(t, c.Config(), nil)
	r.until("everything", func() bool { return r.synced == 1 && r.get(snapshot.KindPod, "default", "web-1") != nil })
	for _, ns := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} { // which a controller makes
		r.until("CA of "+ns, func() bool { return r.get(snapshot.KindConfigMap, ns, "kube-root-ca.crt") != nil })
	}
	before := r.names()
	c.Stop(t)
	r.until("fault", func() bool { return s.resource("services").Error != "" && s.resource("pods").Error != "" })
	if got := s.resource("services"); got.Cause != CauseTCP || got.Objects == 0 || !got.Synced || got.Since.IsZero() {
		t.Errorf("services: %+v", got)
	}
	got := r.names() // the controllers may have added some meanwhile
	if gone := slices.DeleteFunc(before, func(name string) bool { return slices.Contains(got, name) }); len(gone) > 0 {
		t.Errorf("without the API server there are no %v", gone)
	}
	handed, _ := r.handed()
	c.Restart(t)
	c.Apply(t, in("default", strings.ReplaceAll(app, "10.0.0.9", "10.0.0.10")))
	r.until("change", func() bool {
		slice, _ := r.get(snapshot.KindEndpointSlice, "default", "web-manual").(*snapshot.EndpointSlice)
		return slice.Endpoints[0].Addresses[0].String() == "10.0.0.10"
	})
	r.until("recovery", func() bool { st := s.Status(); return len(st.Errors()) == 0 })
	stop()
	if puts, removed := r.handed(); len(removed) > 0 || puts-handed > 5 {
		t.Errorf("removed %v, delivered %d objects again", removed, puts-handed)
	}
	if !strings.Contains(r.log.String(), "followed again") {
		t.Errorf("the log lacks the recovery:\n%s", r.text())
	}
}

// reader makes a service account with the rights of a reader and returns its access.
func reader(t *testing.T, c *kube.Cluster, name, rules string) *rest.Config {
	t.Helper()
	ns := c.Namespace(t, name)
	c.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules:
%[2]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, name: reader, namespace: %[1]s}]
`, ns, rules))
	cfg := rest.AnonymousClientConfig(c.Config())
	cfg.BearerToken = strings.TrimSpace(c.Kubectl(t, "", "-n", ns, "create", "token", "reader"))
	return cfg
}

const mostRules = `- {apiGroups: [""], resources: [namespaces, services], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch]}`

// TestForbidden: a missing right is reported, and the other resources are read. A
// cluster is complete without the right to read nodes, but not to read pods.
func TestForbidden(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "c1")
	cfg := reader(t, c, "forbidden", mostRules)
	s, r, _ := run(t, cfg, func(s *Source) { s.Configuration, s.SecretNamespaces = false, nil })
	r.until("services", func() bool {
		return s.resource("services").Synced && s.resource("pods").Error != "" && s.resource("nodes").Error != ""
	})
	got := s.resource("pods")
	want := `may not list pods (endpoints have no identities and no mutual TLS): 403 Forbidden: pods is forbidden: User "system:serviceaccount:forbidden`
	if got.Cause != CauseForbidden || !strings.HasPrefix(got.Error, want) || got.Synced {
		t.Errorf("pods: %+v", got)
	}
	if s.Status().Synced {
		t.Error("the cluster is complete without its pods")
	}
	c.Apply(t, in("default", strings.Replace(app, "NS", "default", 1))) // the rest is followed
	r.until("service", func() bool { return r.get(snapshot.KindService, "default", "web") != nil })
	for role := range strings.SplitSeq(strings.TrimSpace(c.Kubectl(t, "", "get", "clusterroles", "-o", "name")), "\n") {
		if strings.Contains(role, "/forbidden-") {
			c.Kubectl(t, "", "patch", role, "--type=json", "-p", `[{"op":"add","path":"/rules/-","value":{"apiGroups":[""],"resources":["pods"],"verbs":["get","list","watch"]}}]`)
		}
	}
	r.until("complete", func() bool { return r.synced == 1 })
	if got := s.resource("nodes"); got.Cause != CauseForbidden || got.Synced {
		t.Errorf("nodes: %+v", got)
	}
}

// TestForbiddenPolicies: without the right to read a kind of policies the cluster is not complete,
// so no proxy is served as if there were none.
func TestForbiddenPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "c1")
	for kind, plural := range map[string]string{
		"AuthorizationPolicy": "authorizationpolicies", "RequestAuthentication": "requestauthentications", "PeerAuthentication": "peerauthentications",
	} {
		c.Apply(t, crd("security.istio.io", kind, plural, "v1"))
		others := slices.DeleteFunc([]string{"authorizationpolicies", "requestauthentications", "peerauthentications"}, func(other string) bool { return other == plural })
		rules := mostRules + `
- {apiGroups: [""], resources: [pods, nodes, configmaps, secrets], verbs: [get, list, watch]}
- {apiGroups: [security.istio.io], resources: [` + strings.Join(others, ", ") + `], verbs: [get, list, watch]}`
		s, r, _ := run(t, reader(t, c, "no-"+plural, rules), nil)
		name := plural + ".security.istio.io"
		r.until("a missing right", func() bool { return s.resource(name).Cause == CauseForbidden && s.resource("pods").Synced })
		if got := s.resource(name); got.Synced || got.Unread || s.Status().Synced || !strings.HasPrefix(got.Error, "may not list "+name+" (") {
			t.Errorf("%+v, the cluster is complete: %t", got, s.Status().Synced)
		}
	}
}

// TestCredential: a refused credential is reported.
func TestCredential(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "c1")
	for name, tc := range map[string]struct {
		change func(*rest.Config)
		cause  Cause
		text   string
	}{
		"token":   {func(c *rest.Config) { c.BearerToken = "no" }, CauseUnauthorized, "the API server refuses the credential: 401 Unauthorized"},
		"CA":      {func(c *rest.Config) { c.CAData = otherCA(t) }, CauseTLS, "TLS: tls: failed to verify certificate"},
		"name":    {func(c *rest.Config) { c.Host = "https://none.invalid" }, CauseName, "name: dial tcp: lookup none.invalid"},
		"port":    {func(c *rest.Config) { c.Host = "https://127.0.0.1:1" }, CauseTCP, "TCP: dial tcp 127.0.0.1:1: connect: connection refused"},
		"no TLS":  {func(c *rest.Config) { c.Host = "http://" + kubeAddr(c) }, CauseServer, "400 Bad Request"},
		"another": {func(c *rest.Config) { c.Host += "/version" }, CauseServer, "404 Not Found"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := c.Config()
			tc.change(cfg)
			s, r, _ := run(t, cfg, nil)
			r.until("fault", func() bool { return s.resource("services").Error != "" })
			if got := s.resource("services"); got.Cause != tc.cause || !strings.Contains(got.Error, tc.text) || got.Synced {
				t.Errorf("services: %+v", got)
			}
			if strings.Contains(r.text(), c.Config().BearerToken) {
				t.Error("the log has the token")
			}
		})
	}
}

func kubeAddr(c *rest.Config) string { return strings.TrimPrefix(c.Host, "https://") }

func otherCA(t *testing.T) []byte {
	t.Helper()
	cert, _ := keyPair(t)
	return []byte(cert)
}

// keyPair returns a self-signed certificate and its key, in PEM.
func keyPair(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"example.com"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func secretYAML(t *testing.T, namespace, name string) string {
	t.Helper()
	cert, key := keyPair(t)
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: %s, namespace: %s}\ndata: {tls.crt: %s, tls.key: %s, ca.crt: %[3]s}\n",
		name, namespace, encode(cert), encode(key))
}

// TestSameAsDirectory: the API and a directory with the same YAML give equal objects.
func TestSameAsDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	text, err := os.ReadFile("testdata/mesh.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := keyPair(t)
	text = append(text, "---\n"+secretYAML(t, "apps", "shop")+
		"---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: roots, namespace: istio-system}, data: {ca.crt: "+strconv.Quote(cert)+", other: x}}\n"...)
	var definitions strings.Builder
	for kind, plural := range map[string]string{
		"Gateway": "gateways", "Sidecar": "sidecars", "DestinationRule": "destinationrules",
		"VirtualService": "virtualservices", "ServiceEntry": "serviceentries", "WorkloadEntry": "workloadentries",
	} {
		definitions.WriteString(crd("networking.istio.io", kind, plural, "v1", "v1beta1"))
	}
	definitions.WriteString(crd("networking.istio.io", "EnvoyFilter", "envoyfilters", "v1alpha3"))
	definitions.WriteString(crd("networking.istio.io", "ProxyConfig", "proxyconfigs", "v1beta1"))
	definitions.WriteString(crd("networking.istio.io", "WorkloadGroup", "workloadgroups", "v1"))
	definitions.WriteString(crd("security.istio.io", "PeerAuthentication", "peerauthentications", "v1"))
	definitions.WriteString(crd("security.istio.io", "AuthorizationPolicy", "authorizationpolicies", "v1"))
	definitions.WriteString(crd("security.istio.io", "RequestAuthentication", "requestauthentications", "v1"))
	definitions.WriteString(crd("telemetry.istio.io", "Telemetry", "telemetries", "v1", "v1alpha1"))
	definitions.WriteString(crd("extensions.istio.io", "WasmPlugin", "wasmplugins", "v1alpha1"))
	definitions.WriteString(crd("extensions.istio.io", "TrafficExtension", "trafficextensions", "v1alpha1"))
	definitions.WriteString(crd("gateway.networking.k8s.io", "Gateway", "gateways", "v1"))
	definitions.WriteString(crd("multicluster.x-k8s.io", "ServiceExport", "serviceexports", "v1alpha1"))
	definitions.WriteString(crd("multicluster.x-k8s.io", "ServiceImport", "serviceimports", "v1alpha1"))
	for _, res := range source.Watched() {
		if res.Unread {
			definitions.WriteString(crd(res.Group, res.KubeKind, res.Name, res.Versions...))
			text = fmt.Appendf(text, "---\n{apiVersion: %s/%s, kind: %s, metadata: {name: x, namespace: apps}, spec: {}}\n", res.Group, res.Versions[0], res.KubeKind)
		}
	}
	c.Apply(t, definitions.String()+"---\n"+string(text))

	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "mesh.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	files := newRecord(t)
	fromFiles := &dir.Source{Cluster: "c1", Dir: folder, Now: time.Now}
	go func() { _ = fromFiles.Run(t.Context(), files) }()
	files.until("files", func() bool { return files.synced == 1 })
	s, r, stop := run(t, c.Config(), nil)
	r.until("cluster", func() bool { return r.synced == 1 })
	sameProblems(t, fromFiles.Status(), s.Status().Problems)
	for key := range files.objects {
		r.until(key.String(), func() bool { return r.objects[key] != nil })
	}
	stop()
	kinds := make(map[snapshot.Kind]bool)
	for key, want := range files.objects {
		kinds[key.Kind] = true
		if o, ok := r.objects[key].(*snapshot.Namespace); ok {
			delete(o.Labels, "kubernetes.io/metadata.name") // which the API adds
		}
		diff := cmp.Diff(want, r.objects[key], protocmp.Transform(), cmpopts.IgnoreFields(snapshot.Meta{}, "Created", "Place"),
			cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty(), cmp.Transformer("PEM", func(k snapshot.PrivateKey) string { return string(k.PEM()) }))
		if diff != "" {
			t.Errorf("%s differs (-files +API):\n%s", key, diff)
		}
	}
	for _, res := range source.Watched() {
		if res.Kind == "WorkloadGroup" {
			continue // only its faults are read
		}
		if !kinds[res.Kind] && res.Kind != source.KindCustomResource && !res.Unread {
			t.Errorf("the YAML has no %s", res.Kind)
		}
	}
}

// sameProblems checks that objects without effect are reported alike from files and
// from an API.
func sameProblems(t *testing.T, files []dir.Problem, api []Problem) {
	t.Helper()
	var want, got []string
	for _, p := range files {
		want = append(want, fmt.Sprintf("%s: %s, %t %t", p.Object, p.Reason, p.Unenforced, p.Shared))
	}
	for _, p := range api {
		got = append(got, fmt.Sprintf("%s: %s, %t %t", p.Object, strings.Join(p.Reasons, "; "), p.Unenforced, p.Shared))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 8 {
		t.Errorf("problems differ (-files +API):\n%s", diff)
	}
}
