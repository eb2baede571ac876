package analyze_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestGatewayCredentials: each fault of a Secret that a Gateway names, and of the account of its
// workload, has a finding with a fix. What could not be read has none.
func TestGatewayCredentials(t *testing.T) {
	t.Parallel()
	mesh := []load.Cluster{{ID: "east", Files: []load.File{{Name: "east.yaml", Text: []byte(strings.Replace(ingressPods, "tls: TLS", "tls: {mode: MUTUAL, credentialName: shop}", 1))}}}}
	now := time.Now()
	lives := func(from, until time.Duration) *snapshot.Secret {
		return &snapshot.Secret{Pair: &snapshot.KeyPair{NotBefore: now.Add(from), NotAfter: now.Add(until)}, CA: &snapshot.CABundle{}}
	}
	const day = 24 * time.Hour
	for name, tt := range map[string]struct {
		secret   *snapshot.Secret
		unread   bool
		denied   string
		level    codes.Level
		text     string
		fix      string
		findings int
	}{
		"valid":             {secret: lives(-day, 90*day)},
		"young and short":   {secret: lives(-time.Hour, 23*time.Hour)},
		"not read":          {unread: true},
		"missing":           {level: "Error", text: "there is no Secret istio-ingress/shop in cluster east", fix: "kubectl -n istio-ingress create secret generic shop --from-file tls.crt=", findings: 1},
		"of another type":   {secret: &snapshot.Secret{NoPair: "its type is kubernetes.io/basic-auth"}, level: "Error", text: "has no certificate: its type is kubernetes.io/basic-auth", fix: "| kubectl replace --force -f -", findings: 1},
		"expired":           {secret: lives(-90*day, -day), level: "Error", text: "expired at", fix: "create secret generic shop --from-file tls.crt=", findings: 1},
		"not valid yet":     {secret: lives(day, 90*day), level: "Error", text: "is not valid before", fix: "create secret generic shop --from-file tls.crt=", findings: 1},
		"ends in 13 days":   {secret: lives(-77*day, 13*day), level: "Warning", text: "expires at", fix: "create secret generic shop --from-file tls.crt=", findings: 1},
		"ends in 2 hours":   {secret: lives(-22*time.Hour, 2*time.Hour), level: "Warning", text: "expires at", fix: "create secret generic shop --from-file tls.crt=", findings: 1},
		"without CAs":       {secret: &snapshot.Secret{Pair: lives(-day, 90*day).Pair, NoCA: "no ca.crt"}, level: "Error", text: "has no CA certificates for clients: no ca.crt", fix: "--from-file ca.crt=CA_FILE --dry-run=client -o yaml | kubectl replace --force -f -", findings: 1},
		"denied to gateway": {secret: lives(-day, 90*day), denied: "may not list the Secrets of its namespace", level: "Error", text: "ServiceAccount istio-ingress/default of its workload ingress-1 in cluster east may not list", fix: "create rolebinding", findings: 1},
	} {
		found := analyze.Reports(checkWith(t, mesh, analyze.Options{
			Now: now,
			Credential: func(k snapshot.Key) (*snapshot.Secret, bool) {
				if k.Name != "shop" {
					return nil, true
				}
				return tt.secret, !tt.unread
			},
			MayNotRead: func(snapshot.Account) string { return tt.denied },
		}))
		n := 0
		for i := range found {
			if r := &found[i]; strings.HasSuffix(r.Field, "credentialName") || r.Field == "spec.selector" {
				n++
				if r.Level != tt.level || !strings.Contains(r.Message, tt.text) || !strings.Contains(r.Fix, tt.fix) {
					t.Errorf("%s: %s %s\n\tFIX %s", name, r.Level, r, r.Fix)
				}
			}
		}
		if n != tt.findings {
			t.Errorf("%s: %d findings, want %d: %v", name, n, tt.findings, found)
		}
	}
}

// TestCredentialsOfOtherClusters: a gateway in a cluster with a control plane of its own needs no Secrets for
// the Gateways of other clusters.
func TestCredentialsOfOtherClusters(t *testing.T) {
	t.Parallel()
	own := []byte(strings.Replace(ingressPods, "tls: TLS", "tls: {mode: SIMPLE, credentialName: shop}", 1))
	for selector, want := range map[string]int{"selector: {app: istiod}, ": 0, "": 1} {
		pods, _, _ := strings.Cut(ingressPods, "---")
		other := pods + "---\n{apiVersion: v1, kind: Service, metadata: {name: istiod, namespace: istio-system}, spec: {" + selector + "clusterIP: 10.0.0.9, ports: [{port: 15012}]}}\n"
		found := analyze.Reports(checkWith(t, []load.Cluster{
			{ID: "east", Files: []load.File{{Name: "east.yaml", Text: own}}}, {ID: "west", Files: []load.File{{Name: "west.yaml", Text: []byte(other)}}},
		}, analyze.Options{
			Now: time.Now(),
			Credential: func(k snapshot.Key) (*snapshot.Secret, bool) {
				if k.Cluster == "east" {
					return &snapshot.Secret{Pair: &snapshot.KeyPair{NotAfter: time.Now().Add(time.Hour)}}, true
				}
				return nil, true
			},
		}))
		n := 0
		for i := range found {
			if strings.Contains(found[i].Message, "there is no Secret istio-ingress/shop in cluster west") {
				n++
			}
		}
		if n != want {
			t.Errorf("with %q: %d findings, want %d: %v", selector, n, want, found)
		}
	}
}

// TestCredentialsOfOtherNamespaces: a gateway gets only Secrets of its own namespace, also for Gateways that are in
// another one or that name another one.
func TestCredentialsOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	const copied = "kubectl --context east -n shop get secret pair -o yaml | sed -E '/^  (creationTimestamp|resourceVersion|uid): /d; s/^  namespace: .*/  namespace: istio-ingress/' | " +
		"kubectl --context east apply -f - && kubectl --context east -n shop patch gateway.networking.istio.io public --type json -p '[{\"op\":\"replace\",\"path\":\"/spec/servers/0/tls/credentialName\",\"value\":\"pair\"}]'"
	for credential, want := range map[string]struct{ text, fix string }{
		"pair":      {"there is no Secret istio-ingress/pair in cluster east, where the gateway is; a Secret in namespace shop, where the Gateway is, has no effect", "create secret tls pair"},
		"shop/pair": {"is in namespace shop, but the gateway is in namespace istio-ingress and gets only Secrets of its own namespace", copied},
	} {
		text := strings.NewReplacer("name: public, namespace: istio-ingress", "name: public, namespace: shop", "tls: TLS", "tls: {mode: SIMPLE, credentialName: "+credential+"}").Replace(ingressPods)
		found := ofAPI(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "east.yaml", Text: []byte(text)}}}})
		i := slices.IndexFunc(found, func(f analyze.Finding) bool { return strings.HasSuffix(f.Field, ".credentialName") })
		if i < 0 || !strings.Contains(found[i].Message, want.text) || !strings.Contains(found[i].Fix, want.fix) {
			t.Errorf("%s: found\n%s\nwant %s\n%s", credential, texts(found), want.text, want.fix)
		}
	}
}

// TestHTTPRoutesForTCPPort: http routes of a host without HTTP never apply.
func TestHTTPRoutesForTCPPort(t *testing.T) {
	t.Parallel()
	const text = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.0.0.1, ports: [PORTS]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec: {hosts: [a], http: [{route: [{destination: {host: a, port: {number: 8080}}}]}]}
`
	for ports, want := range map[string]bool{
		"{name: tcp-web, port: 8080}":                               true,
		"{name: https-web, port: 8080}":                             true,
		"{name: web, port: 8080}":                                   false, // detected
		"{name: http-web, port: 8080}":                              false,
		"{name: tcp-web, port: 8080}, {name: grpc-web, port: 9090}": false,
	} {
		found := texts(check(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(strings.Replace(text, "PORTS", ports, 1))}}}}))
		if got := strings.Contains(found, "VirtualService shop/a: spec.http: no port of the host a.shop.svc.cluster.local has HTTP"); got != want {
			t.Errorf("%s: reported: %v, want %v:%s", ports, got, want, found)
		}
	}
}

// TestCertificateNames: a certificate of a Gateway that is for none of the names of a host is found.
func TestCertificateNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		hosts, tls string
		names      []string // of the certificate in Secret one; two is for two.example
		common     string
		want       string
	}{
		{"[shop.example.com]", "{mode: SIMPLE, credentialName: one}", []string{"shop.example.com"}, "", ""},
		{"[shop.example.com]", "{mode: SIMPLE, credentialName: one}", []string{"*.example.com"}, "", ""},
		{"[Shop.example.com]", "{mode: SIMPLE, credentialName: one}", []string{"SHOP.example.com"}, "", ""},
		{"[istio-ingress/shop.example.com]", "{mode: SIMPLE, credentialName: one}", []string{"shop.example.com"}, "", ""},
		{"['*']", "{mode: SIMPLE, credentialName: one}", []string{"shop.example.com"}, "", ""},
		{"['*.example.com']", "{mode: SIMPLE, credentialName: one}", []string{"shop.example.com"}, "", ""},
		{"['*.example.com']", "{mode: SIMPLE, credentialName: one}", []string{"*.example.com"}, "", ""},
		{"[shop.example.com]", "{mode: SIMPLE, credentialName: one}", nil, "Some CA", ""}, // clients verify it in their own way
		{"[shop.example.com]", "{mode: SIMPLE, credentialName: one}", nil, "shop.example.com", ""},
		{"[two.example]", "{mode: SIMPLE, credentialNames: [one, two]}", []string{"shop.example.com"}, "", ""},
		{"[shop.example.com]", "{mode: PASSTHROUGH}", nil, "", ""},
		{"[shop.example.com]", "{mode: SIMPLE, credentialName: one}", []string{"shop.example.org"}, "", "spec.servers[0].tls.credentialName: the certificate in Secret istio-ingress/one of cluster east is for shop.example.org: clients that verify it refuse connections to shop.example.com"},
		{"[shop.example.com]", "{mode: MUTUAL, credentialName: one}", []string{"shop.example.org"}, "", "refuse connections to shop.example.com"},
		{"[a.shop.example.com]", "{mode: SIMPLE, credentialName: one}", []string{"*.example.com"}, "", "refuse connections to a.shop.example.com"},
		{"[shop.example.com, api.example.com]", "{mode: SIMPLE, credentialName: one}", []string{"shop.example.com"}, "", "is for shop.example.com: clients that verify it refuse connections to api.example.com"},
		{"['*.example.org']", "{mode: SIMPLE, credentialName: one}", []string{"shop.example.com"}, "", "refuse connections to *.example.org"},
		{"[shop.example.com]", "{mode: SIMPLE, credentialName: one}", nil, "other.example", "is for other.example: "},
		{"[shop.example.com]", "{mode: SIMPLE, credentialNames: [one, two]}", []string{"other.example"}, "", "spec.servers[0].tls.credentialNames[0]: the certificate in Secret istio-ingress/one of cluster east is for other.example, two.example"},
	} {
		files := []load.Cluster{{ID: "east", Files: []load.File{{Name: "east.yaml", Text: []byte(strings.NewReplacer("hosts: [a.example]", "hosts: "+tt.hosts, "tls: TLS", "tls: "+tt.tls).Replace(ingressPods))}}}}
		secrets := map[string]*snapshot.Secret{"one": certificateFor(t, tt.common, tt.names...), "two": certificateFor(t, "", "two.example")}
		found := analyze.Reports(checkWith(t, files, analyze.Options{
			Now:        time.Now(),
			Credential: func(k snapshot.Key) (*snapshot.Secret, bool) { return secrets[k.Name], true },
		}))
		text, fix := "", ""
		for i := range found {
			if found[i].Code == "MSH0128" {
				text, fix = text+string(found[i].Level)+" "+found[i].Text(), found[i].Fix
			}
		}
		if tt.want == "" && text != "" || !strings.Contains(text, tt.want) || tt.want != "" && !strings.HasPrefix(text, "Warning ") {
			t.Errorf("%s, %s: found %q, want %q", tt.hosts, tt.names, text, tt.want)
		}
		if simple := strings.Contains(tt.tls, "SIMPLE"); tt.want != "" && simple != strings.Contains(fix, "kubectl -n istio-ingress create secret tls one --cert") {
			t.Errorf("%s, %s: fix %q", tt.hosts, tt.names, fix)
		}
	}
}

// certificateFor returns a Secret with a certificate for names.
func certificateFor(t *testing.T, common string, names ...string) *snapshot.Secret {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: common}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(100 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &snapshot.Secret{
		Pair: &snapshot.KeyPair{Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), NotBefore: template.NotBefore, NotAfter: template.NotAfter},
		CA:   &snapshot.CABundle{},
	}
}
