package envoy

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
)

// accessClients are the identities of clients. The empty one uses plaintext.
var accessClients = []string{"", "spiffe://cluster.local/ns/a/sa/one", "spiffe://cluster.local/ns/b/sa/two", "spiffe://other/ns/a/sa/one"}

const (
	accessFilters  = 100 // random chains of filters
	accessRequests = 25  // random requests for each
)

// TestAccess: for random filters and random requests, package access decides as Envoy does,
// and names the rule that Envoy names.
func TestAccess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	ca := newParty(t, "server", certs.ECDSAP256, certs.ECDSAP256, false)
	key, err := certs.EncodeKey(ca.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path("key.pem"), key)
	write(t, path("cert.pem"), certs.EncodeCerts(ca.leaf, ca.ca.Cert))
	write(t, path("roots.pem"), certs.EncodeCerts(ca.ca.Roots...))

	bootstrap := &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{}}
	for i := range accessFilters {
		g := &accessGenerator{mathrand.New(mathrand.NewPCG(18, uint64(i)))}
		l := g.listener(fmt.Sprintf("l%d", i), path("cert.pem"), path("key.pem"), path("roots.pem"))
		bootstrap.StaticResources.Listeners = append(bootstrap.StaticResources.Listeners, l)
	}
	text, err := protojson.Marshal(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path("bootstrap.json"), text)
	proxy := Start(t, path("bootstrap.json"))
	filters, err := proxyconfig.ReadFilters(bytes.NewReader(proxy.ConfigDump()))
	if err != nil {
		t.Fatal(err)
	}
	ports := listenerPorts(t, proxy)
	clients := make([]*tls.Config, len(accessClients))
	for i, id := range accessClients {
		if id != "" {
			clients[i] = accessClient(t, ca.ca, id)
		}
	}
	config := (*access.Config)(filters)
	counts := map[access.Verdict]int{}
	for i, l := range filters.Listeners {
		l.GetAddress().GetSocketAddress().PortSpecifier = portValue(ports[l.GetName()])
		g := &accessGenerator{mathrand.New(mathrand.NewPCG(19, uint64(i)))}
		for range accessRequests {
			client := g.IntN(len(accessClients))
			r := g.request(accessClients[client])
			r.Port = ports[l.GetName()]
			status, details := send(t, clients[client], r)
			result, err := access.Check(config, r)
			if err != nil {
				t.Fatal(err)
			}
			counts[result.Verdict]++
			if problem := differs(result, status, details); problem != "" {
				t.Fatalf("%s: Envoy answers %d %q, Check %s %d %q: %s; path %q; request %+v; listener %s",
					problem, status, details, result.Verdict, result.Status, result.Rule, result.Why, result.Path, *r, protojson.Format(l))
			}
		}
	}
	if counts[access.Allowed] < accessFilters || counts[access.Denied] < accessFilters {
		t.Errorf("the random filters decide too much in one way: %v", counts)
	}
}

// differs describes how the decision differs from the response, empty if it does not.
func differs(r *access.Result, status int, details string) string {
	_, matched, _ := strings.Cut(strings.TrimSuffix(details, "]"), "matched_policy[")
	switch {
	case r.Verdict == access.Undecided:
		return "undecided"
	case status == http.StatusOK && r.Verdict != access.Allowed, status != http.StatusOK && r.Verdict != access.Denied:
		return "another decision"
	case status != http.StatusOK && status != r.Status:
		return "another status"
	case status == http.StatusForbidden && matched == "none" && r.Rule != "", status == http.StatusForbidden && matched != "none" && matched != r.Rule:
		return "another rule"
	}
	return ""
}

// send sends a request as it is, and returns status and details of the response.
func send(t *testing.T, client *tls.Config, r *access.Request) (status int, details string) {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if client != nil {
		secured := client.Clone()
		secured.ServerName = r.SNI
		conn = tls.Client(conn, secured)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.Path, r.Host)
	for _, h := range r.Headers {
		fmt.Fprintf(&text, "%s: %s\r\n", h.Name, h.Value)
	}
	text.WriteString("Connection: close\r\n\r\n")
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text.String()); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: r.Method})
	if err != nil {
		t.Fatalf("%q: %v", text.String(), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// accessClient returns the TLS configuration of a client.
func accessClient(t *testing.T, ca *certs.Authority, id string) *tls.Config {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.SignNames(key.Public(), certs.LeafSpec{SPIFFEID: id, TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // the server is not the subject of the test
		NextProtos:         []string{"http/1.1"},
		Certificates:       []tls.Certificate{{Certificate: [][]byte{leaf.Raw, ca.Cert.Raw}, PrivateKey: key}},
	}
}

// listenerPorts returns the ports that the listeners got, by name.
func listenerPorts(t *testing.T, proxy *Proxy) map[string]uint32 {
	t.Helper()
	var answer struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Port uint32 `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(proxy.Get("/listeners?format=json"), &answer); err != nil {
		t.Fatal(err)
	}
	out := map[string]uint32{}
	for _, s := range answer.Statuses {
		out[s.Name] = s.Address.Socket.Port
	}
	return out
}
