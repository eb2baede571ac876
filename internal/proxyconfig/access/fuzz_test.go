package access

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// configOf returns a proxy with one port, 80, and a connection manager with RBAC filters.
func configOf(t testing.TB, m *hcmv3.HttpConnectionManager, filters ...*rbacv3.RBAC) *Config {
	t.Helper()
	pack := func(m proto.Message) *anypb.Any {
		out, err := anypb.New(m)
		if err != nil {
			t.Skip("not a message")
		}
		return out
	}
	m = proto.CloneOf(m)
	for _, f := range filters {
		m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{
			Name: "rbac", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(&httprbacv3.RBAC{Rules: f})},
		})
	}
	return &Config{Listeners: []*listenerv3.Listener{{
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(m)},
		}}}},
	}}}
}

// FuzzRules: whatever the rules are, Check ends. If it is sure about all requests of a
// caller, then its decision about each of them is the same. A DENY filter in addition never
// lets more through.
func FuzzRules(f *testing.F) {
	for _, text := range []string{
		`{"policies": {"a": {"permissions": [{"urlPath": {"path": {"prefix": "/a"}}}], "principals": [{"any": true}]}}}`,
		`{"action": "DENY", "policies": {"a": {"permissions": [{"notRule": {"header": {"name": "x", "presentMatch": true}}}], "principals": [{"remoteIp": {"addressPrefix": "10.0.0.0", "prefixLen": 8}}]}}}`,
		`{"policies": {"a": {"permissions": [{"orRules": {"rules": [{"destinationPort": 80}, {"requestedServerName": {"suffix": "a"}}]}}], "principals": [{"authenticated": {"principalName": {"safeRegex": {"regex": ".*/ns/a/.*"}}}}]}}}`,
	} {
		m := new(rbacv3.RBAC)
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			f.Fatal(err)
		}
		encoded, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded, "GET", "/a/%2e./b?c", "x", "1", "spiffe://a/ns/a/sa/a", byte(0xff))
	}
	f.Fuzz(func(t *testing.T, encoded []byte, method, path, header, value, identity string, options byte) {
		rules := new(rbacv3.RBAC)
		if proto.Unmarshal(encoded, rules) != nil || method == "" {
			t.Skip("not a message")
		}
		m := &hcmv3.HttpConnectionManager{
			MergeSlashes: options&1 != 0, PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_PathWithEscapedSlashesAction(options >> 1 & 7),
		}
		r := &Request{Port: 80, Method: method, Path: path, Host: "a", Headers: []Header{{header, value}}, TLS: identity != ""}
		if identity != "" {
			r.Peer = &Peer{URIs: []string{identity}}
		}
		check := func(r *Request, filters ...*rbacv3.RBAC) *Result {
			got, err := Check(configOf(t, m, filters...), r)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		one := check(r, rules)
		if all := check(&Request{Port: 80, TLS: r.TLS, Peer: r.Peer, Open: true}, rules); all.Verdict != Undecided && all.Verdict != one.Verdict && one.By != "HTTP" {
			t.Errorf("all requests are %s because %s, and one is %s because %s", all.Verdict, all.Why, one.Verdict, one.Why)
		}
		deny := proto.CloneOf(rules)
		deny.Action = rbacv3.RBAC_DENY
		order := []Verdict{Denied, Undecided, Allowed}
		if both := check(r, rules, deny); slices.Index(order, both.Verdict) > slices.Index(order, one.Verdict) {
			t.Errorf("%s with a further DENY filter, %s without", both.Verdict, one.Verdict)
		}
	})
}

// FuzzCanonicalPath: the result of normalization normalizes to itself. Envoy refuses a path that is
// not valid.
func FuzzCanonicalPath(f *testing.F) {
	for _, path := range []string{"/a/../b", "/%2e%2E/%61", `/a\..\b`, "/a//./b?x=/../", "/%", "/%0", "/ä|^", "/..", "/.../.a/."} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		once, valid := canonicalPath(path)
		twice, again := canonicalPath(once)
		if valid && (once != twice || !again) {
			t.Errorf("%q becomes %q, then %q", path, once, twice)
		}
	})
}
