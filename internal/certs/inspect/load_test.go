package inspect

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// authority makes a root and an intermediate, and the files of the intermediate.
func authority(tb testing.TB) (root, ca *certs.Authority, texts map[string]string) {
	tb.Helper()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, Organization: "test", CommonName: "CA", TTL: 24 * time.Hour}
	root, err := certs.NewRoot(spec, time.Now(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	if ca, err = root.NewIntermediate("cluster1", spec, time.Now(), rand.Reader); err != nil {
		tb.Fatal(err)
	}
	key, err := certs.EncodeKey(ca.Key)
	if err != nil {
		tb.Fatal(err)
	}
	roots := string(certs.EncodeCerts(ca.Roots...))
	return root, ca, map[string]string{
		"ca-cert.pem": string(certs.EncodeCerts(ca.Cert)), "ca-key.pem": string(key),
		"cert-chain.pem": string(certs.EncodeCerts(ca.Cert)) + roots, "root-cert.pem": roots,
	}
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func load(tb testing.TB, inputs ...string) (*Contents, error) {
	tb.Helper()
	return (&Loader{}).Load(tb.Context(), inputs)
}

// summary writes a line for each set: place, purpose, and each file with its
// role and number of blocks.
func summary(m *Contents, dir string) []string {
	var out []string
	for _, s := range m.Sets {
		line := fmt.Sprintf("%s %s:", s.Place, s.Purpose)
		for _, f := range s.Files {
			line += fmt.Sprintf(" %s/%s/%d", f.Name, f.Role, len(f.Blocks))
			if f.Unreadable != "" {
				line += " " + f.Unreadable
			}
		}
		out = append(out, strings.ReplaceAll(line, dir, "DIR"))
	}
	for _, t := range m.Tokens {
		out = append(out, strings.ReplaceAll(fmt.Sprintf("token %s %s %d %s", t.Place, t.Name, t.Expires.Unix(), t.Fault), dir, "DIR"))
	}
	return out
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, _, texts := authority(t)
	for name, text := range texts {
		write(t, filepath.Join(dir, "cluster1", name), text)
	}
	write(t, filepath.Join(dir, "root-cert.pem"), texts["root-cert.pem"])
	write(t, filepath.Join(dir, "README"), "nothing of interest")
	write(t, filepath.Join(dir, ".hidden", "root-cert.pem"), texts["root-cert.pem"])
	write(t, filepath.Join(dir, "broken", "ca-cert.pem"), "not PEM")
	write(t, filepath.Join(dir, "broken", "secret.yaml"), "kind: Secret\nkind: Secret\n")
	// A mounted Secret.
	for name, text := range texts {
		write(t, filepath.Join(dir, "mounted", "..2026", name), text)
		link(t, filepath.Join("..data", name), filepath.Join(dir, "mounted", name))
	}
	link(t, "..2026", filepath.Join(dir, "mounted", "..data"))
	// Neither files nor directories.
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	link(t, ".", filepath.Join(dir, "loop"))
	link(t, "nowhere", filepath.Join(dir, "links", "dangling.pem"))
	link(t, "self.pem", filepath.Join(dir, "links", "self.pem"))

	m, err := load(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"DIR : root-cert.pem//1",
		"DIR/broken ca: ca-cert.pem/certificate/0 secret.yaml//0 DIR/broken/secret.yaml: line 2: key \"kind\" is given twice, first in line 1",
		"DIR/cluster1 ca: ca-cert.pem/certificate/1 ca-key.pem/key/1 cert-chain.pem/chain/2 root-cert.pem/roots/1",
		"DIR/links : dangling.pem//0 no such file or directory self.pem//0 too many levels of symbolic links",
		"DIR/mounted ca: ca-cert.pem/certificate/1 ca-key.pem/key/1 cert-chain.pem/chain/2 root-cert.pem/roots/1",
	}
	if diff := cmp.Diff(want, summary(m, dir)); diff != "" {
		t.Error(diff)
	}
}

func link(tb testing.TB, target, path string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		tb.Fatal(err)
	}
}

func TestExposedKey(t *testing.T) {
	t.Parallel()
	_, _, texts := authority(t)
	path := filepath.Join(t.TempDir(), "ca-key.pem")
	write(t, path, texts["ca-key.pem"])
	exposed := func() string {
		m, err := load(t, path)
		if err != nil {
			t.Fatal(err)
		}
		return m.Sets[0].Files[0].Exposed
	}
	if got := exposed(); got != "" {
		t.Errorf("a key of mode 0600 is exposed: %s", got)
	}
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	m, err := load(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Sets[0].Files[0].Replaceable; !strings.Contains(got, "mode 0777 of its directory") {
		t.Errorf("a key in a directory of mode 0777: %q", got)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if got := exposed(); !strings.Contains(got, "mode 0640") {
		t.Errorf("a key of mode 0640: %q", got)
	}
}

// jwt returns a token with these claims and an invalid signature.
func jwt(claims string) string {
	return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func indent(text string, by int) string {
	return strings.ReplaceAll("\n"+strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", by))
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	_, _, texts := authority(t)
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	kubeconfig := `apiVersion: v1
kind: Config
clusters:
- name: c2
  cluster: {certificate-authority-data: ` + b64(texts["root-cert.pem"]) + `}
users:
- name: u1
  user: {token: ` + jwt(`{"sub":"system:serviceaccount:istio-system:reader","exp":1900000000}`) + `}
- name: legacy
  user: {token: ` + jwt(`{"iss":"kubernetes/serviceaccount"}`) + `}
- name: broken
  user: {token: opaque}
- name: certificate
  user: {client-certificate-data: ` + b64(texts["ca-cert.pem"]) + `, client-key-data: "***"}
`
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"cacerts": {
			"kind: Secret\nmetadata: {name: cacerts, namespace: istio-system}\ndata:\n" +
				"  ca-cert.pem: " + b64(texts["ca-cert.pem"]) + "\n  ca-key.pem: " + b64(texts["ca-key.pem"]) +
				"\n  cert-chain.pem: " + b64(texts["cert-chain.pem"]) + "\n  root-cert.pem: " + b64(texts["root-cert.pem"]) + "\n  password: c2VjcmV0\n",
			[]string{"in: Secret istio-system/cacerts ca: ca-cert.pem/certificate/1 ca-key.pem/key/1 cert-chain.pem/chain/2 root-cert.pem/roots/1"},
		},
		"cacerts in the TLS layout": {
			"kind: Secret\nmetadata: {name: cacerts}\ntype: kubernetes.io/tls\nstringData:\n  tls.crt: |" + indent(texts["ca-cert.pem"], 4) +
				"\n  tls.key: |" + indent(texts["ca-key.pem"], 4) + "\ndata:\n  ca.crt: " + b64(texts["root-cert.pem"]) + "\n  tls.key: aWdub3JlZA==\n",
			[]string{"in: Secret cacerts ca: tls.crt/certificate/1 tls.key/key/1 ca.crt/roots/1"},
		},
		"istio-ca-secret, in a list": {
			"kind: List\nitems:\n- kind: Service\n- kind: Secret\n  type: istio.io/ca-root\n  metadata: {name: istio-ca-secret, namespace: istio-system}\n  data:\n" +
				"    ca-cert.pem: " + b64(texts["root-cert.pem"]) + "\n    ca-key.pem: " + b64(texts["ca-key.pem"]) +
				"\n    root-cert.pem: " + b64(texts["root-cert.pem"]) + "\n    cert-chain.pem: \"\"\n    key.pem: \"\"\n",
			[]string{"in: Secret istio-system/istio-ca-secret ca: ca-cert.pem/certificate/1 ca-key.pem/key/1 root-cert.pem/roots/1 cert-chain.pem//0 key.pem//0"},
		},
		"JSON, and what is not base64": {
			`{"kind": "Secret", "metadata": {"name": "x"}, "data": {"tls.crt": "` + b64(texts["ca-cert.pem"]) + `", "tls.key": "*"}}`,
			[]string{"in: Secret x ca: tls.crt/certificate/1 tls.key/key/0 it is not base64"},
		},
		"ConfigMap": {
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio-ca-root-cert, namespace: a}\ndata:\n  root-cert.pem: |" + indent(texts["root-cert.pem"], 4) + "\n",
			[]string{"in: ConfigMap a/istio-ca-root-cert : root-cert.pem//1"},
		},
		"remote secret": {
			"kind: Secret\nmetadata:\n  name: istio-remote-secret-c2\n  labels: {istio/multiCluster: \"true\"}\nstringData:\n  c2: |" + indent(kubeconfig, 4) + "\n",
			[]string{
				"in: Secret istio-remote-secret-c2, c2, cluster c2 : certificate-authority-data//1",
				"in: Secret istio-remote-secret-c2, c2, user certificate : client-certificate-data//1 client-key-data//0 it is not base64",
				"token in: Secret istio-remote-secret-c2, c2, user u1 system:serviceaccount:istio-system:reader 1900000000 ",
				"token in: Secret istio-remote-secret-c2, c2, user legacy legacy -62135596800 ",
				"token in: Secret istio-remote-secret-c2, c2, user broken broken -62135596800 not a JWT in compact form",
			},
		},
		"token of a service account": {
			"kind: Secret\ntype: kubernetes.io/service-account-token\nmetadata: {name: reader-token}\ndata:\n  ca.crt: " + b64(texts["root-cert.pem"]) +
				"\n  token: " + b64(jwt(`{"sub":"s"}`)) + "\n",
			[]string{"in: Secret reader-token : ca.crt//1", "token in: Secret reader-token, token s -62135596800 "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := (&Loader{Stdin: strings.NewReader(tc.text)}).Load(t.Context(), []string{Stdin})
			if err != nil {
				t.Fatal(err)
			}
			got := summary(m, "standard input")
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], "DIR", "in")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDump(t *testing.T) {
	t.Parallel()
	m, err := load(t, "../../proxyconfig/testdata/c1-sleep.config.json")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"DIR: secret default : default//2",
		"DIR: secret ROOTCA : ROOTCA//1",
	}
	if diff := cmp.Diff(want, summary(m, "../../proxyconfig/testdata/c1-sleep.config.json")); diff != "" {
		t.Error(diff)
	}
}

// TestHost: a server that requires a client certificate is read without one.
func TestHost(t *testing.T) {
	t.Parallel()
	_, ca, _ := authority(t)
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.SignServer(key.Public(), []string{"istiod.istio-system.svc"}, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan string, 1)
			listener := certstest.ServeTLS(t, &tls.Config{
				MaxVersion:   version,
				ClientAuth:   tls.RequireAnyClientCert,
				NextProtos:   []string{"h2"},
				Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw, ca.Cert.Raw}, PrivateKey: key}},
				GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
					asked <- hello.ServerName
					return nil, nil
				},
			})
			l := &Loader{ServerName: "istiod.istio-system.svc"}
			m, err := l.Load(t.Context(), []string{listener})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"DIR leaf: DIR/certificate/2"}, summary(m, listener)); diff != "" {
				t.Error(diff)
			}
			if got := <-asked; got != "istiod.istio-system.svc" {
				t.Errorf("asked for %q", got)
			}
			if got := verify.Check(m.Sets[0], verify.Options{Now: time.Now(), Roots: ca.Roots}); len(got) > 0 {
				t.Errorf("found %+v", got)
			}
			if got := m.Sets[0].Files[0].At(1); got != listener+" (certificate 2)" {
				t.Errorf("place %q", got)
			}
		})
	}
	if _, err := load(t, closedPort(t)); err == nil {
		t.Error("a closed port gives no error")
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	deep := filepath.Join(dir, "deep", strings.Repeat("d/", maxDepth+1))
	write(t, filepath.Join(deep, "x.pem"), "x")
	_, _, texts := authority(t)
	large := filepath.Join(dir, "large.pem")
	write(t, large, texts["ca-cert.pem"]+strings.Repeat("x\n", maxPEM/2))
	many := filepath.Join(dir, "many", "a.pem")
	write(t, many, strings.Repeat("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", certs.MaxBlocks+1))
	for i := range maxCerts / certs.MaxBlocks {
		link(t, "a.pem", fmt.Sprintf("%s.%d.pem", many, i))
	}
	documents := filepath.Join(dir, "documents.yaml")
	write(t, documents, "kind: Secret\n"+strings.Repeat("---\nkind: Secret\n", maxDocuments))
	empty := filepath.Join(dir, "empty")
	write(t, empty, "")
	for input, want := range map[string]string{
		filepath.Join(dir, "deep"): "directories nest more than 10 deep",
		large:                      "more than the 8 MiB of PEM that are read",
		filepath.Dir(many):         "more than 20000 PEM blocks in all",
		documents:                  "more than 10000 documents",
		empty:                      "holds no certificates",
		filepath.Join(dir, "gone"): "is no file, no directory and not host:port",
		"127.0.0.1:0":              "is no file, no directory and not host:port",
		"localhost:notaport":       "is no file, no directory and not host:port",
		Stdin:                      "standard input: there is none",
	} {
		if _, err := load(t, input); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", input, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Loader{}).Load(ctx, []string{dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run ends with %v", err)
	}
}

// FuzzText reads and checks any text. The result never contains a private key or a
// token.
func FuzzText(f *testing.F) {
	_, ca, texts := authority(f)
	var whole strings.Builder
	whole.WriteString("kind: Secret\nmetadata: {name: x}\nstringData:\n")
	for name, text := range texts {
		f.Add([]byte(text))
		fmt.Fprintf(&whole, "  %s: |%s\n", name, indent(text, 4))
	}
	f.Add([]byte(whole.String()))
	f.Add([]byte("kind: Config\nusers: [{name: a, user: {token: " + jwt(`{"exp":1}`) + "}}]\n"))
	f.Add([]byte(`{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := (&Loader{Stdin: bytes.NewReader(data)}).Load(t.Context(), []string{Stdin})
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without text")
			}
			return
		}
		for _, s := range m.Sets {
			for _, found := range verify.Check(s, verify.Options{Now: time.Now(), Roots: []*x509.Certificate{ca.Cert}}) {
				if found.Reason == "" || found.Fix == "" || found.Place == "" {
					t.Errorf("finding is not complete: %+v", found)
				}
			}
		}
	})
}
