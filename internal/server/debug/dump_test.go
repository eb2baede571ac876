package debug

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestKeysAreHidden dumps secrets of every kind.
func TestKeysAreHidden(t *testing.T) {
	inline := func(s string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}}
	}
	var enc xdswire.Encoder
	var list []*xdswire.Resource
	for name, s := range map[string]*tlsv3.Secret{
		"pair": {Name: "pair", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline("shown-chain"), PrivateKey: inline("hidden-key"), Password: inline("hidden-password"), Pkcs12: inline("hidden-p12"),
		}}},
		"roots":   {Name: "roots", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline("shown-roots")}}},
		"generic": {Name: "generic", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline("hidden-generic")}}},
		"tickets": {Name: "tickets", Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline("hidden-ticket")}}}},
	} {
		r, err := enc.Resource(xdswire.SecretType, name, s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	cfg := testConfig(newProxy("gw", "apps", "1"))
	cfg.Sent = func(string) map[string]history.SentConfig {
		return map[string]history.SentConfig{xdswire.SecretType: {Version: "v1", Resources: list}}
	}
	for _, query := range []map[string][]string{{"proxyID": {"gw.apps"}}, {"proxyID": {"gw.apps"}, "types": {"sds"}}} {
		b, err := New(cfg).get(t.Context(), Rights{All: true}, "config_dump", query)
		if err != nil || !json.Valid(b) {
			t.Fatalf("%v: %s", err, b)
		}
		if strings.Contains(string(b), "hidden") || strings.Count(string(b), "shown") != 2 || strings.Count(string(b), "W3JlZGFjdGVkXQ==") != 3 {
			t.Errorf("got %s", b)
		}
	}
}

// TestWhoSeesWhichProxy asks for proxies by parts of their names.
func TestWhoSeesWhichProxy(t *testing.T) {
	old, young := newProxy("web", "apps", "1"), newProxy("web", "apps", "12")
	young.Connected = young.Connected.Add(1)
	east, west := newProxy("db", "apps", "5"), newProxy("db", "apps", "6")
	east.Node.Cluster, west.Node.Cluster = "east", "west"
	p := New(testConfig(old, young, newProxy("web-2", "apps", "3"), newProxy("web", "shop", "4"), east, west))
	all, apps := Rights{All: true}, Rights{Namespace: "apps"}
	for _, tc := range []struct {
		who        Rights
		name, want string
	}{
		{all, "web.apps", "web.apps-12"},
		{all, "web.apps-1", "web.apps-1"},
		{all, "web-2", "web-2.apps-3"},
		{all, "shop", "web.shop-4"},
		{all, "nobody", ""},
		{apps, "web.shop", ""},
		{apps, "web.shop-4", ""},
		{apps, "shop", ""},
		{apps, "web", "web.apps-12"},
		{Rights{}, "web.apps", ""},
		{all, "db.apps-6", "db.apps-6"},
		{all, "db.apps", "db.apps is in clusters east and west: name a stream of one of them, such as db.apps-5 or db.apps-6"},
	} {
		got := ""
		if x, err := p.find(tc.who, tc.name); err != nil {
			got = err.Error()
		} else if x != nil {
			got = x.ID
		}
		if got != tc.want {
			t.Errorf("%+v asks for %q: %q, want %q", tc.who, tc.name, got, tc.want)
		}
	}
}

// TestPagesAreBounded asks for all of a fleet that is larger than a page may be.
func TestPagesAreBounded(t *testing.T) {
	fleet := make([]history.Proxy, maxEntries+1)
	for i := range fleet {
		fleet[i] = newProxy(fmt.Sprintf("web-%d", i), "apps", "1")
	}
	fleet[7] = newProxy("web", "shop", "1")
	p := New(testConfig(fleet...))
	for query, want := range map[string]string{
		"":                     "there are more than 10000 proxies: ask with ?namespace= or ?proxyID=",
		"namespace=shop":       `{"web.shop":[]}`,
		"proxyID=web-1.apps":   `{"web-1.apps":[]}`,
		"proxyID=web-1.nobody": NotConnected,
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.get(t.Context(), Rights{All: true}, "instancesz", q)
		if err != nil {
			b = []byte(err.Error())
		}
		if got := strings.TrimSpace(string(b)); got != want {
			t.Errorf("%q: %.200s, want %s", query, got, want)
		}
	}
}

// TestClientConfigsOfAnAgent joins the streams of an agent and its Envoy.
func TestClientConfigsOfAnAgent(t *testing.T) {
	agent, envoy, other, again := newProxy("vm", "apps", "1"), newProxy("vm", "apps", "2"), newProxy("vm", "apps", "3"), newProxy("vm", "apps", "4")
	agent.Types = map[string]history.TypeStatus{"PCDS": {Sent: "1"}}
	envoy.Types = map[string]history.TypeStatus{"RDS": {Sent: "1"}, "CDS": {Sent: "1"}}
	other.Types, other.Node.Cluster = map[string]history.TypeStatus{"EDS": {}}, "c2"
	again.Types = map[string]history.TypeStatus{"CDS": {}}
	configs, err := New(testConfig(agent, envoy, other, again)).clientConfigs(Rights{All: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range configs {
		var c statusv3.ClientConfig
		if err := a.UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		text := c.GetNode().GetMetadata().AsMap()["CLUSTER_ID"].(string)
		for _, x := range c.GetGenericXdsConfigs() {
			text += " " + xdswire.ShortType(x.GetTypeUrl())
		}
		got = append(got, text)
	}
	if want := []string{"c1 CDS RDS PCDS", "c2 EDS", "c1 CDS"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzNameTable must not fail on anything but a clear error.
func FuzzNameTable(f *testing.F) {
	f.Add([]byte("\x0a\x12\x0a\x01a\x12\x0d\x0a\x071.2.3.4\x1a\x01b"))
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if text, err := nameTable(b); err == nil && !json.Valid(text) {
			t.Errorf("no JSON: %q", text)
		}
	})
}
