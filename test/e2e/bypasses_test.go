package e2e

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attempts are requests that try to get around policies. The key names the advisories whose
// vulnerability they use, in other meshes, proxies and gateways; it is empty for those without one.
type attempts map[string][]string

const client = "cluster.local/ns/apps/sa/client"

// bypasses holds attempts in HTTP/1.1 of the caller client, in the form of protected.send.
var bypasses = map[string]struct {
	policies []string
	good     string // which is permitted
	bad      attempts
}{
	"refused paths": {
		[]string{`{action: DENY, rules: [{to: [{operation: {paths: [/admin, "/admin/*", "/users/{*}/secret"]}}]}]}`},
		"GET /public HTTP/1.1\nHost: a",
		attempts{
			"":               each("GET %s HTTP/1.1\nHost: a", "/admin", "/admin/x", "/%61dmin", "/users/u/secret", "http://a/admin", "http://a//admin"),
			"CVE-2019-9901":  each("GET %s HTTP/1.1\nHost: a", "/./admin", "/x/../admin", "/x/%2e%2e/admin", "/%2e/admin", "/%41/../admin"),
			"CVE-2021-31920": each("GET %s HTTP/1.1\nHost: a", "//admin", "///admin", "/admin//x", "/users//u/secret", "/users/u//secret"),
			"CVE-2021-29492": each("GET %s HTTP/1.1\nHost: a", "/%2fadmin", "/%5cadmin", `/\admin`, `\admin`, "/admin%2fx", "/admin%5Cx", "/users/u%2fsecret", "/x%2f..%2fadmin"),
			"CVE-2021-39156": {"GET /admin#x HTTP/1.1\nHost: a", "GET /admin#/../public HTTP/1.1\nHost: a"},
			"CVE-2020-8595":  {"GET /admin?x HTTP/1.1\nHost: a", "GET /admin?/public HTTP/1.1\nHost: a"},
			"CVE-2025-66490": each("GET %s HTTP/1.1\nHost: a", "/x/..%2fadmin", "/x/%2e%2e%2fadmin", `/x/..%5Cadmin`, "/.%2fadmin", "/.%5cadmin", "/%2f./admin", "/%2e;/admin", "/x/%2e%2e;/admin", "/;x/admin", "/admin;x", "/users/q/.%2fsecret", "//x/admin"),
			"CVE-2023-27487": {"GET /admin HTTP/1.1\nHost: a\nx-envoy-original-path: /public", "GET /admin HTTP/1.1\nHost: a\nx-original-url: /public\nx-rewrite-url: /public"},
		},
	},
	"permitted paths": {
		[]string{`{rules: [{to: [{operation: {paths: ["/public/*", "/users/{*}"], methods: [GET]}}]}]}`},
		"GET /public/a HTTP/1.1\nHost: a",
		attempts{
			"":               each("GET %s HTTP/1.1\nHost: a", "/Public/a", "/publica", "/users/a%2fb", "/users/a/b", "/users/", "/admin;/public/a", "//public/a"),
			"CVE-2021-43557": each("GET %s HTTP/1.1\nHost: a", "/public/../admin", "/public/%2e%2e/admin", "/public/x/../../admin"),
			"CVE-2021-29492": each("GET %s HTTP/1.1\nHost: a", "/public/..%2fadmin", "/public/%2e%2e%2fadmin", `/public/..%5cadmin`, `/public/..\admin`, "/users/..%2fadmin"),
			"CVE-2021-32779": {"GET /admin#/public/ HTTP/1.1\nHost: a"},
			"CVE-2020-8595":  {"GET /admin?/public/a HTTP/1.1\nHost: a"},
			"CVE-2026-48020": {"GET /public../admin HTTP/1.1\nHost: a", "GET /public%2e%2e/admin HTTP/1.1\nHost: a"},
		},
	},
	"methods and headers": {
		[]string{
			`{action: DENY, rules: [{to: [{operation: {methods: [DELETE]}}]}]}`,
			`{action: DENY, rules: [{when: [{key: "request.headers[x-role]", values: [guest]}]}]}`,
		},
		"GET /public HTTP/1.1\nHost: a\nx-role: staff",
		attempts{
			"":                              {"DELETE / HTTP/1.1\nHost: a", "delete / HTTP/1.1\nHost: a", "DeLeTe / HTTP/1.1\nHost: a", "GET / HTTP/1.1\nHost: a\nX-Role: guest", "GET / HTTP/1.1\nHost: a\nx-role:guest", "GET / HTTP/1.1\nHost: a\nx_role: guest", "GET / HTTP/1.1\nHost: a\nx-role: staff\nX_ROLE: x,guest", "GET / HTTP/1.1\nHost: a\nx-role: \xff,guest", "GET / HTTP/1.1\nHost: a\nx_role: guest, \xff"},
			"CVE-2020-25017":                {"GET / HTTP/1.1\nHost: a\nx-role: staff\nx-role: guest", "GET / HTTP/1.1\nHost: a\nx-role: guest\nx-role: staff"},
			"CVE-2026-31838 CVE-2026-26308": {"GET / HTTP/1.1\nHost: a\nx-role: staff,guest", "GET / HTTP/1.1\nHost: a\nx-role: staff ,\tguest , x", "GET / HTTP/1.1\nHost: a\nX-ROLE: x\nx-role: y, guest"},
			"CVE-2019-9900":                 {"GET / HTTP/1.1\nHost: a\nx-role: guest\x00", "GET / HTTP/1.1\nHost: a\nx-role\x00: guest"},
			"CVE-2019-18802":                {"GET / HTTP/1.1\nHost: a\nx-role: guest \t ", "GET / HTTP/1.1\nHost: a\nx-role:\t guest"},
		},
	},
	"hosts": {
		[]string{`{action: DENY, rules: [{to: [{operation: {hosts: [admin.example.com, "*.internal"]}}]}]}`},
		"GET / HTTP/1.1\nHost: shop.example.com",
		attempts{
			"":               each("GET / HTTP/1.1\nHost: %s", "admin.example.com", "admin.example.com:80", "admin.example.com:5000", "admin.example.com:", "x@admin.example.com", "db.internal", "\xff@admin.example.com", "\xffdb.internal"),
			"CVE-2021-39155": each("GET / HTTP/1.1\nHost: %s", "ADMIN.example.com", "aDmin.Example.Com", "db.INTERNAL:5432"),
			"CVE-2022-23632": each("GET / HTTP/1.1\nHost: %s", "admin.example.com.", "admin.example.com.:443", "db.internal."),
			"CVE-2019-18802": {"GET / HTTP/1.1\nHost: admin.example.com \t", "GET / HTTP/1.1\nHost:admin.example.com"},
		},
	},
	"headers with many dashes": {
		[]string{
			`{action: DENY, rules: [{when: [{key: "request.headers[x-a-b-c-d-role]", values: [guest]}]}]}`,
			`{rules: [{when: [{key: "request.headers[x-1-2-3-4-5-6-7]", notValues: [guest]}]}]}`,
		},
		"GET /public HTTP/1.1\nHost: a\nx-a-b-c-d-role: staff",
		attempts{"": each("GET / HTTP/1.1\nHost: a\n%s: guest", "x-a-b-c-d-role", "X_A_B_C_D_ROLE", "x_a-b-c-d-role", "x-a_b-c-d-role", "x-a-b_c_d-role", "x-a-b-c-d_role", "x_1_2_3-4-5-6-7", "x-1-2-3-4-5-6_7")},
	},
	"headers of HTTP itself": {
		[]string{
			`{action: DENY, rules: [{when: [{key: "request.headers[host]", values: [admin.example.com]}]}]}`,
			`{action: DENY, rules: [{when: [{key: "request.headers[Host]", values: [other.example.com]}]}]}`,
			`{action: DENY, rules: [{when: [{key: "request.headers[:authority]", values: [third.example.com]}]}]}`,
			`{action: DENY, rules: [{when: [{key: "request.headers[:path]", values: ["/admin", "/secret/*"]}]}]}`,
			`{action: DENY, rules: [{when: [{key: "request.headers[:method]", values: [DELETE]}]}]}`,
		},
		"GET /public HTTP/1.1\nHost: a",
		attempts{"": each("GET / HTTP/1.1\nHost: %s", "admin.example.com", "other.example.com", "third.example.com", "ADMIN.example.com", "third.example.com:80", "THIRD.example.com"), "CVE-2021-31920": append(each("GET %s HTTP/1.1\nHost: a", "/admin", "/admin?x", "//admin", "/admin/", "/admin;x?y", "/x/..%2fadmin", "/secret/a", "/secret//a?b", "/x/.%2fsecret/a?b"), "delete / HTTP/1.1\nHost: a")},
	},
	"no host": {
		[]string{`{rules: [{to: [{operation: {notHosts: [admin.example.com]}}]}]}`},
		"GET /public HTTP/1.1\nHost: a",
		attempts{"": {"GET / HTTP/1.0", "GET / HTTP/1.0\nHost: admin.example.com", "GET / HTTP/1.1", "GET / HTTP/1.1\nHost: admin.example.com", "GET http://admin.example.com/ HTTP/1.0"}},
	},
	"absolute targets": {
		[]string{`{action: DENY, rules: [{to: [{operation: {hosts: [admin.example.com]}}]}]}`},
		"GET / HTTP/1.1\nHost: shop.example.com",
		attempts{"": {"GET http://admin.example.com/ HTTP/1.1\nHost: shop.example.com", "GET http://ADMIN.example.com:81/ HTTP/1.1\nHost: shop.example.com"}},
	},
	"permitted values": {
		[]string{`{rules: [{to: [{operation: {hosts: [shop.example.com], methods: [GET]}}], when: [{key: "request.headers[x-user]", values: [alice]}, {key: source.principal, values: [` + client + `]}]}]}`},
		"GET / HTTP/1.1\nHost: shop.example.com\nx-user: alice",
		attempts{
			"": {
				"GET / HTTP/1.1\nHost: shop.example.com\nx_user: alice", "GET / HTTP/1.1\nHost: shop.example.com\nx-user: alice2",
				"GET / HTTP/1.1\nHost: shop.example.com\nx-user: Alice", "GET / HTTP/1.1\nHost: shopXexample.com\nx-user: alice", "GET / HTTP/1.1\nHost: shop.example.com.evil\nx-user: alice",
				"get / HTTP/1.1\nHost: shop.example.com\nx-user: alice", "GETX / HTTP/1.1\nHost: shop.example.com\nx-user: alice", "GET http://evil/ HTTP/1.1\nHost: shop.example.com\nx-user: alice",
				"GET / HTTP/1.1\nHost: shop.example.com\nHost: evil\nx-user: alice",
			},
			"CVE-2020-25017": {"GET / HTTP/1.1\nHost: shop.example.com\nx-user: alice\nx-user: mallory"},
		},
	},
	"messages with two ends": {
		[]string{`{action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}`},
		"POST /public HTTP/1.1\nHost: a\nContent-Length: 1\n\nx",
		attempts{"": {
			"POST /public HTTP/1.1\nHost: a\nContent-Length: 4\nTransfer-Encoding: chunked\n\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
			"POST /public HTTP/1.1\nHost: a\nContent-Length: 4\nContent-Length: 5\n\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
			"POST /public HTTP/1.1\nHost: a\nTransfer-Encoding: x, chunked\nTransfer-Encoding : chunked\n\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
		}},
	},
}

func each(format string, values ...string) []string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprintf(format, v))
	}
	return out
}

// permits waits until Envoy permits a request.
func (p *protected) permits(t *testing.T, what string, send func() int) {
	t.Helper()
	eventually(t, "Envoy permits "+what, func() error {
		if code := send(); code != http.StatusOK {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
}

// refuses checks that Envoy permits none of some attempts.
func (p *protected) refuses(t *testing.T, attempts []string, send func(string) int) {
	t.Helper()
	for _, a := range attempts {
		if code := send(a); code == http.StatusOK {
			t.Errorf("%q is permitted", a)
		}
	}
}

// TestAuthorizationBypasses sends requests that try to get around policies. All are refused.
func TestAuthorizationBypasses(t *testing.T) {
	p := startProtected(t)
	for name, c := range bypasses {
		t.Run(name, func(t *testing.T) {
			p.apply(t, c.policies...)
			send := func(lines string) int { return p.send(t, client, "", lines) }
			p.permits(t, "a good request", func() int { return send(c.good) })
			for _, list := range c.bad {
				p.refuses(t, list, send)
			}
			p.permits(t, "a good request afterwards", func() int { return send(c.good) })
		})
	}
	t.Run("HTTP/2", func(t *testing.T) { refusesHTTP2(t, p) })
	t.Run("tokens", func(t *testing.T) { refusesTokens(t, p) })
	t.Run("identities", func(t *testing.T) { refusesIdentities(t, p) })
	t.Run("a second request", func(t *testing.T) {
		p.apply(t, `{action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}`)
		p.permits(t, "a good request", func() int { return p.send(t, client, "", "GET /public HTTP/1.1\nHost: a") })
		c := p.keep(t)
		if _, err := io.WriteString(c, "GET /public HTTP/1.1\r\nHost: a\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{http.StatusOK, http.StatusForbidden} {
			resp, err := http.ReadResponse(c.answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("request %d: status %d, want %d", i, resp.StatusCode, want)
			}
		}
	})
}

// bypassesHTTP2 holds attempts in HTTP/2: fields, with : between name and value.
var bypassesHTTP2 = attempts{
	"": {
		":method:GET :scheme:http :authority:a :path:/x/..%2fadmin", ":method:GET :scheme:http :authority:a :path://admin", ":method:GET :scheme:http :authority:a :path:/admin#x",
		":method:GET :scheme:http :authority:admin.example.com :path:/", ":method:GET :scheme:http :authority:x@admin.example.com:443 :path:/", ":method:GET :scheme:https :authority:ADMIN.example.com :path:/",
		":method:GET :scheme:http :path:/ host:admin.example.com", ":method:GET :scheme:http :authority: :path:/ host:admin.example.com",
		":method:delete :scheme:http :authority:a :path:/", ":method:GET :method:DELETE :scheme:http :authority:a :path:/",
		":method:GET :scheme:http :authority:a :path:/ :path:/admin", ":method:GET :scheme:http :authority:a :authority:admin.example.com :path:/",
		":method:GET :scheme:http :authority:a :path:/ X-Role:guest", ":method:GET :scheme:http :authority:a :path:/ x-role:staff x-role:guest",
		":method:CONNECT :protocol:websocket :scheme:http :authority:a :path:/admin", ":method:CONNECT :authority:admin.example.com:80",
		":method:GET :scheme:http :authority:a :path:/admin x-http-method-override:POST",
	},
	"CVE-2026-33186": {":method:GET :scheme:http :authority:a :path:admin", ":method:POST :scheme:http :authority:a :path:admin/x content-type:application/grpc te:trailers"},
}

// refusesHTTP2 sends the attempts in HTTP/2.
func refusesHTTP2(t *testing.T, p *protected) {
	p.apply(t, `{action: DENY, rules: [{to: [{operation: {paths: [/admin, "/admin/*"]}}, {operation: {hosts: [admin.example.com]}}, {operation: {methods: [DELETE]}}]}]}`,
		`{action: DENY, rules: [{when: [{key: "request.headers[x-role]", values: [guest]}]}]}`)
	send := func(fields string) int { return p.sendHTTP2(t, fields) }
	p.permits(t, "a good request", func() int { return send(":method:GET :scheme:http :authority:a :path:/public") })
	for _, list := range bypassesHTTP2 {
		p.refuses(t, list, send)
	}
}

// sendHTTP2 sends a request of HTTP/2 with fields in their order, and returns the status of the
// answer, 0 if there is none.
func (p *protected) sendHTTP2(t *testing.T, fields string) (status int) {
	t.Helper()
	conn, err := p.dial("", "127.3.0.1:5000", "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for field := range strings.FieldsSeq(fields) {
		at := 1 + strings.Index(field[1:], ":")
		if err := encoder.WriteField(hpack.HeaderField{Name: field[:at], Value: field[at+1:]}); err != nil {
			t.Fatal(err)
		}
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true}))
	for err == nil {
		var f http2.Frame
		switch f, err = framer.ReadFrame(); f := f.(type) {
		case *http2.MetaHeadersFrame:
			if _, err := fmt.Sscan(f.PseudoValue("status"), &status); err != nil {
				t.Fatal(err)
			}
			return status
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return 0
		}
	}
	return 0
}

// part returns a part of a token.
func part(of any) string {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// forgedTokens returns attempts that are tokens of nobody, or of others than a policy permits.
func forgedTokens(t *testing.T, p *protected) attempts {
	t.Helper()
	good := map[string]any{"realm": map[string]any{"roles": []string{"admin"}}}
	with := func(changed map[string]any) string {
		claims := maps.Clone(good)
		maps.Copy(claims, changed)
		return p.signer.token(t, claims)
	}
	claims := map[string]any{
		"iss": p.signer.issuer, "sub": "alice", "aud": "shop", "realm": good["realm"], "exp": time.Now().Add(time.Hour).Unix(),
	}
	forged := func(header map[string]any, signature []byte) string {
		return part(header) + "." + part(claims) + "." + base64.RawURLEncoding.EncodeToString(signature)
	}
	public, err := x509.MarshalPKIXPublicKey(p.signer.public().Key)
	if err != nil {
		t.Fatal(err)
	}
	inPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	stranger := newSigner(t, p.signer.issuer, p.signer.kid, jose.ES256)
	embedded, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: stranger.key}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := embedded.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	withKey, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	header := func(more map[string]any) map[string]any {
		out := map[string]any{"alg": "ES256", "typ": "JWT", "kid": p.signer.kid}
		maps.Copy(out, more)
		return out
	}
	random := sha256.Sum256([]byte("no signature"))
	signature := slices.Concat(random[:], random[:])
	hmac := func(secret []byte, kid string) string {
		return signer{p.signer.issuer, kid, jose.HS256, secret}.token(t, good)
	}
	unknown := stranger
	unknown.issuer, unknown.kid = "https://issuer.example.com", "x"
	valid := with(nil)
	return attempts{
		"":               {with(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), with(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), stranger.token(t, good), "", valid[:len(valid)-4], valid + "." + valid},
		"CVE-2015-9235":  each("%s", forged(header(map[string]any{"alg": "none"}), nil), forged(header(map[string]any{"alg": "None"}), nil), forged(header(map[string]any{"alg": "nOnE"}), signature), forged(map[string]any{}, nil)),
		"CVE-2016-10555": {hmac(inPEM, p.signer.kid), hmac(public, p.signer.kid)},
		"CVE-2018-0114":  {withKey},
		"CVE-2022-21449": {forged(header(nil), make([]byte, 64)), forged(header(nil), nil)},
		"CVE-2021-21378": {unknown.token(t, map[string]any{"sub": "a/alice", "realm": good["realm"]}), p.signer.token(t, map[string]any{"iss": "other", "realm": good["realm"]})},
		"CVE-2025-59420": {forged(header(map[string]any{"crit": []string{"b64"}, "b64": false}), signature)},
		"keys that the token chooses": {
			forged(header(map[string]any{"kid": "../../../dev/null"}), signature), forged(header(map[string]any{"kid": p.signer.kid + "' OR '1'='1"}), signature),
			forged(header(map[string]any{"jku": "https://attacker.example.com/keys"}), signature), forged(header(map[string]any{"x5u": "https://attacker.example.com/cert"}), signature),
			hmac(make([]byte, 32), "../../../dev/null"),
		},
		"claims that only look like the permitted one": {
			with(map[string]any{"realm": nil}), with(map[string]any{"realm": nil, "realm.roles": "admin"}), with(map[string]any{"realm": nil, "realm][roles": "admin"}),
			with(map[string]any{"realm": map[string]any{"roles": "administrator"}}), with(map[string]any{"realm": map[string]any{"roles": "ADMIN"}}), with(map[string]any{"realm": map[string]any{"roles": "user admin"}}),
			with(map[string]any{"realm": map[string]any{"roles": []any{[]string{"admin"}}}}), with(map[string]any{"realm": map[string]any{"roles": map[string]any{"admin": true}}}),
			with(map[string]any{"realm": map[string]any{"Roles": []string{"admin"}}}), with(map[string]any{"realm": []any{good["realm"]}}),
			with(map[string]any{"sub": "alice/x"}), with(map[string]any{"sub": "Alice"}), with(map[string]any{"sub": nil}), with(map[string]any{"sub": "x/alice"}),
		},
		"huge": {with(map[string]any{"sub": strings.Repeat("alice", 20_000)}), strings.Repeat("a", 1<<20)},
	}
}

// refusesTokens sends tokens that are not of the caller whom a policy permits.
func refusesTokens(t *testing.T, p *protected) {
	p.apply(t, `{rules: [{from: [{source: {requestPrincipals: ["https://issuer.example.com/a/alice"]}}], when: [{key: "request.auth.claims[realm][roles]", values: [admin]}]}]}`)
	send := func(token string) int {
		return p.send(t, client, "", "GET / HTTP/1.1\nHost: a\nAuthorization: Bearer "+token)
	}
	p.permits(t, "a valid token", func() int {
		return send(p.signer.token(t, map[string]any{"realm": map[string]any{"roles": []string{"admin"}}}))
	})
	for name, list := range forgedTokens(t, p) {
		for _, token := range list {
			if code := send(token); code == http.StatusOK {
				t.Errorf("%s: %.200q is permitted", name, token)
			}
		}
	}
}

// bypassesIdentity names the advisories of refusesIdentities.
var bypassesIdentity = []string{"CVE-2026-39350", "CVE-2020-16844", "CVE-2022-21656"}

// refusesIdentities sends requests of callers whose names resemble the names of permitted callers.
func refusesIdentities(t *testing.T, p *protected) {
	const get = "GET / HTTP/1.1\nHost: a"
	dotted := "cluster.local/ns/apps/sa/team.a"
	for _, id := range []string{dotted, "cluster.local/ns/apps/sa/team-a", "evil.example.com/ns/apps/sa/team.a"} {
		p.identify(t, id, "--spiffe-id", "spiffe://"+id)
	}
	p.identify(t, "DNS", "--dns", "team.a.apps.svc.cluster.local")
	p.apply(t, `{rules: [{from: [{source: {serviceAccounts: [apps/team.a]}}]}]}`)
	p.permits(t, "the account", func() int { return p.send(t, dotted, "", get) })
	// The other names of CVE-2026-39350, of other trust domains, and names of DNS instead of
	// identities (CVE-2022-21656).
	for _, id := range []string{"cluster.local/ns/apps/sa/team-a", "evil.example.com/ns/apps/sa/team.a", "DNS", client} {
		if code := p.send(t, id, "", get); code == http.StatusOK {
			t.Errorf("the caller %s is permitted", id)
		}
	}
	p.refuses(t, each(get+"\nx-forwarded-client-cert: %s", "URI=spiffe://"+dotted, `By=x;Hash=y;Subject="";URI=spiffe://`+dotted, "spiffe://"+dotted),
		func(lines string) int { return p.send(t, "", "", lines) })

	// Suffixes in rules about connections of TCP.
	const batch = "old.example.com/ns/legacy/sa/batch"
	p.apply(t, `{action: DENY, rules: [{from: [{source: {principals: ["*/sa/batch"]}}], to: [{operation: {ports: ["5001"]}}]}]}`,
		`{action: DENY, rules: [{from: [{source: {namespaces: ["*-2"]}}], to: [{operation: {ports: ["5001"]}}]}]}`)
	eventually(t, "a connection is permitted", func() error {
		if !p.connects(t, client, "") {
			return errors.New("it is refused")
		}
		return nil
	})
	for _, id := range []string{batch, "cluster.local/ns/apps-2/sa/other"} {
		if p.connects(t, id, "") {
			t.Errorf("a connection of %s is permitted", id)
		}
	}
	p.apply(t, `{rules: [{when: [{key: connection.sni, values: [shop.example.com]}]}]}`)
	p.permits(t, "the server name", func() int { return p.send(t, client, "shop.example.com", get) })
	for _, name := range []string{"", "example.com", "xshop.example.com", "shop.example.com.evil.com", "shopXexample.com"} {
		if code := p.send(t, client, name, get); code == http.StatusOK {
			t.Errorf("the server name %q is permitted", name)
		}
	}
}

// otherAdvisories are the advisories that TestGatewayPolicies and TestExternalAuthorization cover.
var otherAdvisories = []string{"CVE-2020-11767", "CVE-2021-32777", "CVE-2023-27488"}

// TestAdvisoriesAreListed: the table of advisories in the documentation has those whose
// vulnerabilities the tests try, at least 40 times.
func TestAdvisoriesAreListed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "security-policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	advisory := regexp.MustCompile(`CVE-\d+-\d+`)
	listed := advisory.FindAllString(string(text), -1)
	slices.Sort(listed)
	tried, times := slices.Concat(bypassesIdentity, otherAdvisories), 0
	count := func(a attempts) {
		for names, list := range a {
			if found := advisory.FindAllString(names, -1); len(found) > 0 {
				tried = append(tried, found...)
				times += len(list)
			}
		}
	}
	for _, b := range bypasses {
		count(b.bad)
	}
	count(bypassesHTTP2)
	p := &protected{signer: newSigner(t, "https://issuer.example.com/a", "k", jose.ES256)}
	count(forgedTokens(t, p))
	slices.Sort(tried)
	if tried = slices.Compact(tried); !slices.Equal(slices.Compact(listed), tried) {
		t.Errorf("the documentation lists %q, the tests try %q", listed, tried)
	}
	if times < 40 {
		t.Errorf("the tests try %d times", times)
	}
}
