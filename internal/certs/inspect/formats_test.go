package inspect

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
)

func TestDER(t *testing.T) {
	t.Parallel()
	root, ca, _ := authority(t)
	must := func(der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return string(der)
	}
	key, ok := ca.Key.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("the key is %T", ca.Key)
	}
	old, err := certs.GenerateKey(certs.RSA2048)
	if err != nil {
		t.Fatal(err)
	}
	oldKey := pemBytes(t, old)
	dir := t.TempDir()
	for name, der := range map[string]string{
		"one.cer":   string(ca.Cert.Raw),
		"chain.der": string(ca.Cert.Raw) + string(root.Cert.Raw),
		"request":   must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)),
		"list.crl":  must(x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), NextUpdate: time.Now().Add(time.Hour)}, ca.Cert, key)),
		"pkcs8.key": string(oldKey),
		"sec1.key":  must(x509.MarshalECPrivateKey(key)),
		// What looks like it but is none of these.
		"other.der": "\x30\x03\x02\x01\x05", "cut.der": string(ca.Cert.Raw[:100]), "more.der": string(oldKey) + "x",
		// A set's file has to be PEM.
		"set/ca-cert.pem": string(ca.Cert.Raw),
	} {
		write(t, filepath.Join(dir, name), der)
	}
	m, err := load(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"DIR : chain.der//2 list.crl//1 one.cer//1 pkcs8.key//1 request//1 sec1.key//1",
		"DIR/set ca: ca-cert.pem/certificate/0",
	}
	got := summary(m, dir)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m, err = load(t, filepath.Join(dir, "one.cer")); err != nil || !m.Sets[0].Files[0].Blocks[0].Cert.Equal(ca.Cert) {
		t.Errorf("one.cer: %v", err)
	}
	for _, name := range []string{"other.der", "cut.der", "more.der"} {
		if _, err := load(t, filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), "want PEM, DER") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func pemBytes(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// TestSecretsOfADump: the output of meshctl pc secrets -o json and of istioctl is read
// like the dump.
func TestSecretsOfADump(t *testing.T) {
	t.Parallel()
	const dump = "../../proxyconfig/testdata/c1-sleep.config.json"
	whole, err := load(t, dump)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(dump)
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := proxyconfig.ReadSecrets(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var ours bytes.Buffer
	if err := output.Write(&ours, output.FormatJSON, secrets.Resource); err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("../../proxyconfig/testdata/c1-sleep.secret.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{ours.String(), string(theirs)} {
		m, err := (&Loader{Stdin: strings.NewReader(text)}).Load(t.Context(), []string{Stdin})
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if diff := cmp.Diff(summary(whole, dump), summary(m, "standard input")); diff != "" {
			t.Error(diff)
		}
	}
	for text, want := range map[string]string{
		`{"dynamicActiveSecrets":[{"name":"x"}]}`:                    "holds no certificates",
		`{"dynamicActiveSecrets":[{"name":"x"}]} {}`:                 "behind the end of the secrets",
		`{"dynamicActiveSecrets":[{"na`:                              "the dump is truncated",
		`{"staticSecrets":{}}`:                                       "want an array",
		`{"dynamicActiveSecrets":[{"secret":{"@type":"x"}}]}`:        "mismatched message type",
		`{"staticSecrets":[{"name":1}]}`:                             "/staticSecrets/0: decode",
		`{"kind":"List","items":[],"dynamicActiveSecrets":"text x"}`: "holds no certificates",
	} {
		_, err := (&Loader{Stdin: strings.NewReader(text)}).Load(t.Context(), []string{Stdin})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

// TestEncodings: YAML and dumps may be UTF-16. Of PEM in UTF-16, which other programs refuse, the
// fault is reported.
func TestEncodings(t *testing.T) {
	t.Parallel()
	root, _, _ := authority(t)
	text := string(certs.EncodeCerts(root.Cert))
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  ca.crt: |\n    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
	utf16Of := func(text string) string { // of ASCII
		return "\xff\xfe" + strings.Join(strings.Split(text, ""), "\x00") + "\x00"
	}
	for name, c := range map[string]struct {
		text   string
		isRead bool
	}{
		"Secret": {secret, true}, "Secret with a mark": {"\ufeff" + secret, true}, "Secret in UTF-16": {utf16Of(secret), true},
		"PEM": {text, true}, "PEM with a mark": {"\ufeff" + text, false}, "PEM in UTF-16": {utf16Of(text), false},
	} {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, c.text)
		m, err := load(t, path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b := m.Sets[0].Files[0].Blocks; len(b) != 1 || (b[0].Cert != nil) != c.isRead {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// TestOtherFormats: the error of a file in a format that no proxy reads names the format and what to do.
func TestOtherFormats(t *testing.T) {
	t.Parallel()
	root, _, _ := authority(t)
	text := certs.EncodeCerts(root.Cert)
	store, err := asn1.Marshal(struct {
		Version int
		Content []int
	}{3, []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":            {" \n", "is empty: it holds no certificates"},
		"base64 of PEM":    {base64.StdEncoding.EncodeToString(text) + "\n", "base64 of certificates or keys, as kubectl prints the data of a Secret: decode it with base64 -d"},
		"base64 of DER":    {base64.StdEncoding.EncodeToString(root.Cert.Raw), "base64 of certificates"},
		"base64 of a text": {base64.StdEncoding.EncodeToString([]byte("kind: a")), "holds no certificates"},
		"PKCS #12":         {string(store), "is PKCS #12, which no proxy reads: convert it with openssl pkcs12"},
		"a text":           {"hello", "holds no certificates"},
	} {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, c.text)
		if _, err := load(t, path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	for blockType, want := range map[string]string{"PKCS7": "openssl pkcs7 -print_certs", "OPENSSH PRIVATE KEY": "one of SSH"} {
		blocks := certs.Scan([]byte("-----BEGIN " + blockType + "-----\nAAAA\n-----END " + blockType + "-----\n"))
		if len(blocks) != 1 || blocks[0].Err == nil || !strings.Contains(blocks[0].Err.Error(), want) {
			t.Errorf("%s: %+v", blockType, blocks)
		}
	}
}
