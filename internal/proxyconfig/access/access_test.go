package access

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxyconfig"
)

// readConfig reads a dump from YAML.
func readConfig(t testing.TB, path string) *Config {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var dump any
	if err := yaml.Unmarshal(text, &dump); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(dump)
	if err != nil {
		t.Fatal(err)
	}
	filters, err := proxyconfig.ReadFilters(bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	return (*Config)(filters)
}

// as returns a request by mTLS.
func as(identity string, r Request) Request {
	r.TLS, r.ALPN, r.Peer = true, []string{"istio"}, &Peer{URIs: []string{identity}}
	return r
}

const web = "spiffe://cluster.local/ns/web/sa/web"

// TestCheck: the verdict, the rule that decides and the reason.
func TestCheck(t *testing.T) {
	c := readConfig(t, "testdata/dump.yaml")
	token := func(more map[string]any) map[string]any {
		claims := map[string]any{"iss": "https://issuer.example", "aud": []any{"shop"}}
		maps.Copy(claims, more)
		return claims
	}
	get := func(path string) Request { return Request{Port: 8080, Method: "GET", Host: "shop", Path: path} }
	for name, test := range map[string]struct {
		request Request
		want    Verdict
		rule    string
		why     string
	}{
		"allowed by the first rule": {as(web, get("/shop/cart")), Allowed, "ns[apps]-policy[web]-rule[0]", `identity "` + web + `" is`},
		"another path":              {as(web, get("/admin")), Denied, "", `path "/admin" is not "/shop/*"`},
		"another identity":          {as("spiffe://cluster.local/ns/web/sa/other", get("/shop/")), Denied, "", `the nearest, rule 0 of AuthorizationPolicy web.apps, does not match: identity "spiffe://cluster.local/ns/web/sa/other" is not`},
		"another trust domain":      {as("spiffe://other/ns/web/sa/web", get("/shop/")), Denied, "", `identity "spiffe://other/ns/web/sa/web" is not "spiffe://cluster.local/*"`},
		"plaintext":                 {get("/shop/"), Denied, "", "the client has no certificate"},
		"the DENY rule":             {as(web, Request{Port: 8080, Method: "DELETE", Path: "/shop/"}), Denied, "ns[apps]-policy[no-delete]-rule[0]", `method "DELETE" is "DELETE"`},
		"dot segments":              {as(web, get("/shop/../admin")), Denied, "", `path "/admin"`},
		"merged slashes":            {as(web, get("//shop//%63art")), Allowed, "ns[apps]-policy[web]-rule[0]", ""},
		"a template and a claim":    {withClaims(get("/users/joe/orders/a/b"), token(map[string]any{"scope": "users orders"})), Allowed, "ns[apps]-policy[web]-rule[1]", "claim scope is [users orders]"},
		"not the template":          {withClaims(get("/users/joe/x/orders/a"), token(map[string]any{"scope": "orders"})), Denied, "", ""},
		"without the claim":         {withClaims(get("/users/joe/orders/a"), token(nil)), Denied, "", "claim scope is missing"},
		"without a token":           {get("/users/joe/orders/a"), Denied, "", "rule 1 of AuthorizationPolicy web.apps, does not match: the request has no valid token"},
		"a header of a claim":       {withClaims(get("/"), token(map[string]any{"group": "ops"})), Allowed, "ns[apps]-policy[web]-rule[2]", ""},
		"a forged header of a claim": {func() Request {
			r := get("/")
			r.Headers = []Header{{"X-Group", "ops"}}
			return r
		}(), Denied, "", "header x-group is missing"},
		"another issuer":   {withClaims(as(web, get("/shop/")), map[string]any{"iss": "other"}), Denied, "", `issuer "other" is not "https://issuer.example"`},
		"another audience": {withClaims(as(web, get("/shop/")), map[string]any{"iss": "https://issuer.example", "aud": "x"}), Denied, "", "audience"},

		"TCP":                    {as("spiffe://cluster.local/ns/apps/sa/api", Request{Port: 5432}), Allowed, "ns[apps]-policy[db]-rule[0]", ""},
		"TCP, another identity":  {as(web, Request{Port: 5432}), Denied, "", "identity"},
		"TCP, plaintext":         {Request{Port: 5432}, Denied, "", "the port accepts only TLS"},
		"TCP, rules for HTTP":    {Request{Port: 5433}, Denied, "", "rules with methods, paths, headers or tokens need HTTP, which the port does not have"},
		"asks":                   {Request{Port: 8090, Method: "GET", Path: "/admin", Source: netip.MustParseAddr("10.1.0.1")}, Undecided, "", "asks opa"},
		"does not ask":           {Request{Port: 8090, Method: "GET", Path: "/x", Source: netip.MustParseAddr("10.1.0.1")}, Allowed, "", "no DENY rule matches"},
		"denied after asking":    {Request{Port: 8090, Method: "GET", Path: "/admin", Source: netip.MustParseAddr("10.9.0.1")}, Denied, "address", "client address 10.9.0.1 is in 10.9.0.0/16"},
		"client of a proxy":      {Request{Port: 8090, Method: "GET", Path: "/x", Source: netip.MustParseAddr("10.1.0.1"), Headers: []Header{{"X-Forwarded-For", "10.9.1.2"}}}, Denied, "address", ""},
		"an unknown address":     {Request{Port: 8090, Method: "GET", Path: "/x"}, Undecided, "address", "it depends on the client address"},
		"a condition in CEL":     {Request{Port: 8090, Method: "GET", Path: "/cel", Source: netip.MustParseAddr("10.1.0.1")}, Undecided, "cel", "CEL"},
		"a port without a chain": {Request{Port: 9}, Allowed, "", "no policy applies"},
		"any request":            {as(web, Request{Port: 8080, Open: true}), Undecided, "ns[apps]-policy[no-delete]-rule[0]", "it depends on the method"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Check(c, &test.request)
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != test.want || got.Rule != test.rule || !strings.Contains(got.Why, test.why) {
				text, _ := json.MarshalIndent(got, "", " ")
				t.Errorf("want %s by %q, because %q; got %s", test.want, test.rule, test.why, text)
			}
		})
	}
}

func withClaims(r Request, claims map[string]any) Request {
	r.Claims = claims
	return r
}

// TestRow: the decisions about all requests of callers, and the callers that are left out.
func TestRow(t *testing.T) {
	c := readConfig(t, "testdata/dump.yaml")
	callers := Callers([]mesh.Identity{
		{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: "api"},
		{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: "job"},
		{TrustDomain: "cluster.local", Namespace: "web", ServiceAccount: "web"},
	}, "cluster.local")
	for port, want := range map[uint32][]string{
		5432: {"apps/api allow ns[apps]-policy[db]-rule[0]", "other identities deny", "plaintext deny"},
		8080: {
			"web/web depends ns[apps]-policy[no-delete]-rule[0] ns[apps]-policy[web]-rule[0] ns[apps]-policy[web]-rule[1] ns[apps]-policy[web]-rule[2]",
			"other identities depends ns[apps]-policy[no-delete]-rule[0] ns[apps]-policy[web]-rule[1] ns[apps]-policy[web]-rule[2]",
			"plaintext depends ns[apps]-policy[no-delete]-rule[0] ns[apps]-policy[web]-rule[1] ns[apps]-policy[web]-rule[2]",
		},
	} {
		row, err := Row(c, port, callers)
		if err != nil {
			t.Fatal(err)
		}
		if len(row) != len(callers) {
			t.Errorf("port %d has %d cells for %d callers", port, len(row), len(callers))
		}
		var got []string
		for _, cell := range Summary(row) {
			got = append(got, strings.Join(append([]string{cell.Caller, cell.Calls}, cell.Rules...), " "))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("port %d (-want +got):\n%s", port, diff)
		}
	}
}
