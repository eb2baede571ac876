package proxyconfig

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSecretRows: a secret has a row for each certificate, and each trust domain.
func TestSecretRows(t *testing.T) {
	t.Parallel()
	root := must[*Secrets](t)(ReadSecrets(testdata(t, configDump))).Items[1].Cert
	pem := base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\n" + base64.StdEncoding.EncodeToString(root.Raw) + "\n-----END CERTIFICATE-----\n"))
	const secretType = `"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"`
	validator := `"custom_validator_config": {"name": "spiffe", "typed_config": {
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig",
		"trust_domains": [{"name": "one", "trust_bundle": {"inline_bytes": "` + pem + `"}}, {"name": "two", "trust_bundle": {"inline_string": "rubbish"}}]}}`
	dump := fmt.Sprintf(`{"configs": [{"@type": %q,
		"dynamic_active_secrets": [{"name": "ROOTCA", "secret": {%s, "validation_context": {%s}}}],
		"dynamic_warming_secrets": [{"name": "default", "version_info": "uninitialized", "secret": {%s, "name": "default"}},
		  {"name": "w", "secret": {%s, "validation_context": {"trusted_ca": {"inline_bytes": %q}}}}]
	}]}`, secretSection.typeURL, secretType, validator, secretType, secretType, pem)
	secrets := must[*Secrets](t)(ReadSecrets(strings.NewReader(dump)))
	serial := "b5cc86c0e8a744dc5059789ab181303c     2036-11-18T10:46:10Z     2026-11-21T10:46:10Z"
	want := []string{
		"RESOURCE NAME     TYPE     STATUS            VALID CERT     SERIAL NUMBER                        NOT AFTER                NOT BEFORE",
		"default                    UNINITIALIZED     false",
		"w                 CA       WARMING           true           " + serial,
		"ROOTCA            CA       ACTIVE            true           " + serial,
		"ROOTCA                     ACTIVE            false",
		"",
	}
	if diff := cmp.Diff(want, tableLines(t, SecretTable(secrets.Items, dumpTime))); diff != "" {
		t.Error(diff)
	}
	want = []string{
		"RESOURCE NAME     TYPE     STATUS     VALID CERT     SERIAL NUMBER                        NOT AFTER                NOT BEFORE               TRUST DOMAIN",
		"ROOTCA            CA       ACTIVE     false          " + serial + "     one",
		"ROOTCA                     ACTIVE     false                                                                                                 two",
		"",
	}
	if diff := cmp.Diff(want, tableLines(t, SecretTable(secrets.Items[2:], root.NotAfter.Add(1)))); diff != "" {
		t.Error(diff)
	}
}
