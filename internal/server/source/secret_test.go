package source_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var secretTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// pemPair returns a self-signed certificate and its key, valid for some hours.
func pemPair(t testing.TB, hours int) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: secretTime, NotAfter: secretTime.Add(time.Duration(hours) * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), crypto.Signer(private))
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
}

// secretYAML returns a Secret with one value per line, from the sixth line on.
func secretYAML(typ string, values ...string) string {
	text := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: 'n'}\ntype: " + typ + "\ndata:\n"
	for i := 0; i+1 < len(values); i += 2 {
		text += fmt.Sprintf("  %s: %s\n", values[i], base64.StdEncoding.EncodeToString([]byte(values[i+1])))
	}
	return text
}

// showsKey reports whether a text repeats a part of a key.
func showsKey(text, key string) bool {
	lines := strings.Split(strings.TrimSpace(key), "\n")
	for _, line := range lines[1 : len(lines)-1] {
		if strings.Contains(text, line) {
			return true
		}
	}
	return strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(key))[:40])
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	cert, key := pemPair(t, 1)
	other, otherKey := pemPair(t, 2)
	const tls, opaque = "kubernetes.io/tls", "Opaque"
	many := []string{}
	for i := range 5 {
		many = append(many, fmt.Sprintf("k%d", i), "v")
	}
	type want struct{ pair, noPair, ca, noCA, warning, fault string }
	noCA := "found secret, but didn't have expected keys cacert or ca.crt; found: "
	noPair := "found secret, but didn't have expected keys (cert and key) or (tls.crt and tls.key); found: "
	for name, tc := range map[string]struct {
		yaml string
		want want
	}{
		"tls":              {secretYAML(tls, "tls.crt", cert, "tls.key", key), want{pair: cert, noCA: noCA + "tls.crt, tls.key"}},
		"tls with CA":      {secretYAML(tls, "tls.crt", cert, "tls.key", key, "ca.crt", other), want{pair: cert, ca: other}},
		"generic first":    {secretYAML(opaque, "tls.crt", other, "tls.key", otherKey, "cert", cert, "key", key, "ca.crt", cert, "cacert", other), want{pair: cert, ca: other}},
		"generic is empty": {secretYAML(opaque, "tls.crt", other, "tls.key", otherKey, "cert", "", "key", ""), want{pair: other, noCA: noCA + "cert, key, tls.crt, and 1 more..."}},
		"no type":          {strings.Replace(secretYAML("x", "cacert", cert+other), "type: x\n", "", 1), want{ca: cert + other, noPair: noPair + "cacert"}},
		"both empty":       {secretYAML(tls, "tls.crt", "", "tls.key", "", "ca.crt", ""), want{noPair: `found keys "tls.crt" and "tls.key", but they were empty`, noCA: `found key "ca.crt", but it was empty`}},
		"other keys":       {secretYAML(opaque, many...), want{noPair: noPair + "k0, k1, k2, and 2 more...", noCA: noCA + "k0, k1, k2, and 2 more..."}},
		"no keys":          {secretYAML(opaque), want{noPair: noPair, noCA: noCA}},
		"stringData": {
			"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: 'n'}\nstringData:\n  cert: |\n    " + strings.ReplaceAll(cert, "\n", "\n    ") + "\n  key: |\n    " + strings.ReplaceAll(key, "\n", "\n    ") + "\n",
			want{pair: cert, noCA: noCA + "cert, key"},
		},
		"key of another":     {secretYAML(tls, "tls.crt", cert, "tls.key", otherKey), want{fault: "line 7: data[tls.key]: is not the key of the certificate"}},
		"key is none":        {secretYAML(opaque, "cert", cert, "key", strings.ReplaceAll(key, "PRIVATE", "SOME")), want{fault: "line 7: data.key: is not a private key in PEM"}},
		"key is large":       {secretYAML(tls, "tls.crt", cert, "tls.key", "-----BEGIN RSA PRIVATE KEY-----\n"+strings.Repeat("A", 16<<10)+"\n"), want{fault: "line 7: data[tls.key]: has 16417 bytes: a private key has at most 16384"}},
		"certificate is key": {secretYAML(opaque, "cert", key, "key", cert), want{fault: "line 6: data.cert: PEM block 1 is not a certificate"}},
		"key in the chain":   {secretYAML(tls, "tls.crt", cert+key, "tls.key", key), want{fault: "line 6: data[tls.crt]: PEM block 2 is not a certificate"}},
		"not PEM":            {secretYAML(tls, "tls.crt", key[30:], "tls.key", key), want{fault: "line 6: data[tls.crt]: is not a certificate in PEM"}},
		"broken certificate": {secretYAML(tls, "tls.crt", strings.ReplaceAll(key, "PRIVATE KEY", "CERTIFICATE"), "tls.key", key), want{fault: "line 6: data[tls.crt]: certificate 1 cannot be read"}},
		"key among the CAs": {
			secretYAML(tls, "tls.crt", cert, "tls.key", key, "ca.crt", cert+key),
			want{pair: cert, noCA: "data[ca.crt]: PEM block 2 is not a certificate", warning: "line 8: data[ca.crt]: PEM block 2 is not a certificate"},
		},
		"not base64": {secretYAML(tls) + "  tls.crt: '-----'\n", want{fault: "line 6: data[tls.crt]: illegal base64 data at input byte 0"}},
		"no mapping": {secretYAML(tls) + "  - " + key[30:60] + "\n", want{fault: "line 5: data: is a list, want a mapping"}},
		"too large":  {secretYAML(opaque, "a", strings.Repeat("x", 1<<20), "b", "x"), want{fault: "line 5: data: has 1048577 bytes, at most 1048576 are used"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(tc.yaml), Line: 1})
			if err != nil {
				t.Fatal(err)
			}
			r, err := (&source.Converter{Cluster: "c"}).Decode(v, snapshot.Place{})
			var got want
			if fault, ok := errors.AsType[*fields.Error](err); ok {
				got.fault = fmt.Sprintf("line %d: %v", fault.Line, fault)
			}
			for _, w := range r.Warnings {
				got.warning = fmt.Sprintf("line %d: %v", w.Line, w)
			}
			if s, ok := r.Object.(*snapshot.Secret); ok {
				got.noPair, got.noCA = s.NoPair, s.NoCA
				if s.Pair != nil {
					got.pair = string(bytes.TrimSpace(s.Pair.Chain)) + "\n"
					if !showsKey(string(s.Pair.Key.PEM()), map[string]string{cert: key, other: otherKey}[got.pair]) {
						t.Error("the key is not that of the certificate")
					}
				}
				if s.CA != nil {
					got.ca = string(s.CA.Roots)
					if name == "no type" && !s.CA.NotAfter.Equal(secretTime.Add(time.Hour)) {
						t.Errorf("valid until %v, want the end of the shortest", s.CA.NotAfter)
					}
				}
			}
			if got != tc.want {
				t.Errorf("got %+v\nwant %+v", got, tc.want)
			}
			if said := fmt.Sprintf("%+v %v %#v", r, err, r.Object); showsKey(said, key) || showsKey(said, otherKey) {
				t.Errorf("the key is shown: %s", said)
			}
		})
	}
}

// TestConfigMaps: only CA certificates are read of ConfigMaps, under the same keys as in
// Secrets. ConfigMaps without any are ignored.
func TestConfigMaps(t *testing.T) {
	t.Parallel()
	cert, key := pemPair(t, 1)
	other, _ := pemPair(t, 2)
	configMap := func(values ...string) string {
		text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s, namespace: 'n'}\ndata:\n  app.properties: x\n"
		for i := 0; i+1 < len(values); i += 2 {
			text += "  " + values[i] + ": |\n    " + strings.ReplaceAll(strings.TrimSpace(values[i+1]), "\n", "\n    ") + "\n"
		}
		return text
	}
	type want struct{ ca, crl, noCA, fault string }
	for name, tc := range map[string]struct {
		yaml string
		want want
	}{
		"ca.crt":         {configMap("ca.crt", cert+other, "ca.crl", "revoked", "crl", "x"), want{ca: cert + other, crl: "revoked\n"}},
		"generic first":  {configMap("ca.crt", other, "cacert", cert, "crl", "revoked"), want{ca: cert, crl: "revoked\n"}},
		"empty":          {configMap() + "  ca.crt: ''\n", want{noCA: `found key "ca.crt", but it was empty`}},
		"something else": {configMap("tls.crt", cert, "tls.key", key), want{}},
		"key among them": {configMap("ca.crt", cert+key), want{fault: "line 6: data[ca.crt]: PEM block 2 is not a certificate"}},
		"no certificate": {configMap("cacert", "x"), want{fault: "line 6: data.cacert: is not a certificate in PEM"}},
		"too large":      {configMap("ca.crt", strings.Repeat("x", 1<<20)), want{fault: "line 4: data: has 1048577 bytes of certificates, at most 1048576 are used"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(tc.yaml), Line: 1})
			if err != nil {
				t.Fatal(err)
			}
			r, err := (&source.Converter{Cluster: "c"}).Decode(v, snapshot.Place{})
			var got want
			if fault, ok := errors.AsType[*fields.Error](err); ok {
				got.fault = fmt.Sprintf("line %d: %v", fault.Line, fault)
			}
			if m, ok := r.Object.(*snapshot.ConfigMap); ok {
				got.noCA = m.NoCA
				if m.CA != nil {
					got.ca, got.crl = string(m.CA.Roots), string(m.CA.CRL)
				}
			}
			if got != tc.want || r.Key != (snapshot.Key{Kind: snapshot.KindConfigMap, Cluster: "c", Namespace: "n", Name: "s"}) {
				t.Errorf("%v is read as %+v\nwant %+v", r.Key, got, tc.want)
			}
		})
	}
}

// TestSecretsOfGateways: a broken or huge Secret is reported by field and line, an expired one by
// its time, and none affects the others.
func TestSecretsOfGateways(t *testing.T) {
	t.Parallel()
	cert, key := pemPair(t, 1)
	_, otherKey := pemPair(t, 1)
	old, oldKey := pemPair(t, -1)
	var many strings.Builder
	for i := range 9_000 {
		fmt.Fprintf(&many, "  k%d: eA==\n", i)
	}
	const tls = "kubernetes.io/tls"
	texts := []string{
		secretYAML(tls, "tls.crt", cert, "tls.key", otherKey),
		secretYAML(tls, "tls.crt", old, "tls.key", oldKey),
		secretYAML(tls, "tls.crt", strings.Repeat("x", 5<<20), "tls.key", key),
		secretYAML("Opaque", "cert", cert, "key", key) + many.String(),
		secretYAML(tls, "tls.crt", cert, "tls.key", key),
	}
	want := []string{
		"line 7: data[tls.key]: is not the key of the certificate",
		"until 2025-12-31 23:00:00 +0000 UTC",
		fmt.Sprintf("line 5: data: has %d bytes, at most 1048576 are used", 5<<20+len(key)),
		"until 2026-01-01 01:00:00 +0000 UTC",
		"until 2026-01-01 01:00:00 +0000 UTC",
	}
	converter := &source.Converter{Cluster: "c"}
	for i, text := range texts {
		v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := converter.Decode(v, snapshot.Place{})
		got := "nothing"
		if fault, ok := errors.AsType[*fields.Error](err); ok {
			got = fmt.Sprintf("line %d: %v", fault.Line, fault)
		} else if s, ok := r.Object.(*snapshot.Secret); ok && s.Pair != nil {
			got = fmt.Sprint("until ", s.Pair.NotAfter)
		}
		if got != want[i] {
			t.Errorf("Secret %d: got %s, want %s", i, got, want[i])
		}
	}
}

func TestOtherSecrets(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"kubernetes.io/service-account-token", "helm.sh/release.v1", "kubernetes.io/dockercfg"} {
		v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(secretYAML(typ, "ca.crt", "x")), Line: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := (&source.Converter{Cluster: "c"}).Decode(v, snapshot.Place{}); err != nil || r.Object != nil || len(r.Warnings) > 0 {
			t.Errorf("%s: got %+v, %v", typ, r, err)
		}
	}
}

// FuzzSecretValues: no value of a Secret makes the converter panic, and faults never
// repeat a value.
func FuzzSecretValues(f *testing.F) {
	cert, key := pemPair(f, 1)
	f.Add(cert, key, cert)
	f.Add(key, cert, key)
	f.Add("-----BEGIN "+key[40:60]+"-----\n", key[20:], "")
	f.Fuzz(func(t *testing.T, cert, key, ca string) {
		v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(secretYAML("Opaque", "cert", cert, "key", key, "cacert", ca)), Line: 1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := (&source.Converter{Cluster: "c"}).Decode(v, snapshot.Place{})
		if said := fmt.Sprintf("%+v %v %#v", r, err, r.Object); len(key) > 40 && strings.Contains(said, key) {
			t.Errorf("the key is shown: %s", said)
		}
	})
}

// TestPullCredentials: a Secret of the type of registries has their credentials, and nothing else is
// taken from it. No error repeats a part of it.
func TestPullCredentials(t *testing.T) {
	t.Parallel()
	const typ, key = "kubernetes.io/dockerconfigjson", ".dockerconfigjson"
	const valid = `{"auths":{"registry.example":{"auth":"dTpw"}}}`
	for name, tc := range map[string]struct{ yaml, fault string }{
		"valid":      {secretYAML(typ, key, valid, "tls.crt", "x"), ""},
		"no auths":   {secretYAML(typ, key, `{"auth":"dTpw"}`), "has no credentials of registries"},
		"no JSON":    {secretYAML(typ, key, "dTpw"), "has no credentials of registries"},
		"no text":    {secretYAML(typ, key, "{\"auths\":{\"a\":\"dTpw\xff\"}}"), "has no credentials of registries"},
		"other key":  {secretYAML(typ, "config.json", valid), "has no credentials of registries"},
		"too large":  {secretYAML(typ, key, valid+strings.Repeat(" ", 64<<10)), "at most 65536 are used"},
		"other type": {secretYAML("Opaque", key, valid), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(tc.yaml), Line: 1})
			if err != nil {
				t.Fatal(err)
			}
			result, err := (&source.Converter{Cluster: "c"}).Decode(v, snapshot.Place{})
			if tc.fault != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fault) || strings.Contains(err.Error(), "dTpw") {
					t.Errorf("%v, want %s", err, tc.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, want := "", valid
			if name == "other type" {
				want = ""
			}
			s := result.Object.(*snapshot.Secret)
			if s.Pull != nil {
				got = string(s.Pull.Config.PEM())
			}
			if got != want || s.Pair != nil || s.CA != nil {
				t.Errorf("credentials %q", got)
			}
			if strings.Contains(fmt.Sprintf("%+v", s.Pull), "dTpw") {
				t.Error("printing shows the credentials")
			}
		})
	}
}
