package analyze_test

import (
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/analyze"
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
		level    analyze.Level
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
