package proxyconfig

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Blocks of PEM with arbitrary content.
const (
	certBlock = "-----BEGIN CERTIFICATE-----\nQ0VSVA==\n-----END CERTIFICATE-----\n"
	keyBlock  = "-----BEGIN EC PRIVATE KEY-----\nS0VZS0VZ\n-----END EC PRIVATE KEY-----\n"
)

func TestRedactKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "",
		certBlock:                        certBlock,
		"-----BEGIN ":                    "-----BEGIN ",
		"a PRIVATE KEY of mine":          "a PRIVATE KEY of mine",
		keyBlock:                         "[redacted]\n",
		certBlock + keyBlock + certBlock: certBlock + "[redacted]\n" + certBlock,
		keyBlock + keyBlock:              "[redacted]\n[redacted]\n",
		certBlock + "-----BEGIN PRIVATE KEY-----\nS0VZ":                   certBlock + "[redacted]",
		"-----BEGIN PRIVATE KEY-----\nS0VZ\n-----END PRIVATE":             "[redacted]",
		"-----BEGIN X -----BEGIN PRIVATE KEY-----a-----END PRIVATE KEY--": "-----BEGIN X [redacted]",
	} {
		if got := redactKeys(text, false); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		encode := base64.StdEncoding.EncodeToString
		if got := redactKeys(encode([]byte(text)), true); got != encode([]byte(want)) {
			t.Errorf("base64 of %q: %q, want that of %q", text, got, want)
		}
		if got := redactKeys(base64.RawURLEncoding.EncodeToString([]byte(text)), true); want != text && got != encode([]byte(want)) {
			t.Errorf("base64 for URLs of %q: %q, want that of %q", text, got, want)
		}
	}
	if got := redactKeys("not base64!", true); got != "not base64!" {
		t.Errorf("what is not base64 became %q", got)
	}
}

// TestKeyInAChain: a chain that contains its key is shown without the key.
func TestKeyInAChain(t *testing.T) {
	t.Parallel()
	encoded := base64.StdEncoding.EncodeToString([]byte(certBlock + keyBlock))
	quoted, err := json.Marshal(certBlock + keyBlock)
	if err != nil {
		t.Fatal(err)
	}
	shown := base64.StdEncoding.EncodeToString([]byte(certBlock + "[redacted]\n"))
	for name, source := range map[string]string{
		"inline_bytes": `"` + encoded + `"`, "inlineBytes": `"` + encoded + `"`, "inline_string": string(quoted),
	} {
		for where, context := range map[string]string{
			"known":   `{"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "tls_certificate": {"certificate_chain": {"` + name + `": VALUE}}}`,
			"unknown": `{"@type": "type.googleapis.com/acme.Secret", "chain": [{"` + name + `": VALUE}]}`,
			"struct":  `{"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "value": {"chain": {"` + name + `": VALUE}}}`,
		} {
			dump := `{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump", "dynamic_active_secrets": [{"name": "default", "secret": ` +
				strings.ReplaceAll(context, "VALUE", source) + `}]}]}`
			all, err := ReadDump(strings.NewReader(dump))
			if err != nil {
				t.Fatal(name, where, err)
			}
			texts := []string{string(all.Configs)}
			if where == "known" {
				secrets, err := ReadSecrets(strings.NewReader(dump))
				if err != nil {
					t.Fatal(name, err)
				}
				texts = append(texts, string(secrets.Resource.Active[0]))
			}
			for _, text := range texts {
				if strings.Contains(text, "KEYKEY") || strings.Contains(text, "S0VZS0VZ") || strings.Contains(text, encoded) {
					t.Errorf("%s, %s: the key is shown: %s", name, where, text)
				}
				if !strings.Contains(text, shown) && !strings.Contains(text, `END CERTIFICATE-----\n[redacted]`) {
					t.Errorf("%s, %s: the certificate is not shown: %s", name, where, text)
				}
			}
		}
	}
}

// TestSecretsAreRedacted: secrets are redacted, and nothing else is.
func TestSecretsAreRedacted(t *testing.T) {
	t.Parallel()
	const key = "c2VjcmV0IGtleQ=="
	secret := `"tls_certificate": {"certificate_chain": {"inline_bytes": "Y2VydA=="}, "private_key": {"inline_bytes": "` + key + `"}, "password": {"inline_string": "hunter2"}}`
	dump := fmt.Sprintf(`{"configs": [{"@type": %q,
		"dynamic_active_secrets": [{"name": "default", "secret": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", %s}},
		  {"name": "generic", "secret": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "generic_secret": {"secret": {"filename": "/etc/token"}}}}],
		"static_secrets": [{"name": "s", "secret": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "session_ticket_keys": {"keys": [{"inline_string": "hunter2"}]}}}]
	}]}`, secretSection.typeURL, secret)
	secrets := must[*Secrets](t)(ReadSecrets(strings.NewReader(dump)))
	text := must[[]byte](t)(json.Marshal(written(t, secrets.Resource)))
	for _, leak := range []string{key, "hunter2", "/etc/token"} {
		if bytes.Contains(text, []byte(leak)) {
			t.Errorf("%q is shown: %s", leak, text)
		}
	}
	var got struct {
		DynamicActiveSecrets []struct {
			Secret struct {
				TLSCertificate struct {
					CertificateChain, PrivateKey struct{ InlineBytes []byte }
					Password                     struct{ InlineString string }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	cert := got.DynamicActiveSecrets[0].Secret.TLSCertificate
	parts := []string{string(cert.CertificateChain.InlineBytes), string(cert.PrivateKey.InlineBytes), cert.Password.InlineString}
	if diff := cmp.Diff([]string{"cert", "[redacted]", "[redacted]"}, parts); diff != "" {
		t.Error(diff)
	}

	// A key inside of a cluster, too.
	clusters := must[[]Cluster](t)(ReadClusters(strings.NewReader(clustersOf(
		`{"name": "a", "transport_socket": {"name": "tls", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "common_tls_context": {"tls_certificates": [{"private_key": {"inline_string": "hunter2"}}]}}}}`)),
		ClusterFilter{}, true))
	if r := clusters[0].JSON; bytes.Contains(r, []byte("hunter2")) || !bytes.Contains(r, []byte(redacted)) {
		t.Errorf("the key is not redacted: %s", r)
	}
}
