package remotesecret

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func updating() bool { return flag.Lookup("update").Value.String() == "true" }

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite golden files")
	flag.Parse()
	os.Exit(m.Run())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if updating() {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestEncode: the first and last lines equal the output of Istio's tools.
func TestEncode(t *testing.T) {
	t.Parallel()
	ca := []byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
	for name, spec := range map[string]Spec{
		"remote": {Cluster: "cluster1", Namespace: "istio-system", Server: "https://10.0.0.1:6443", CA: ca, Token: "header.claims.signature"},
		"config": {
			Cluster: "cluster1", Namespace: "istio-system", Server: "https://10.0.0.1:6443", CA: ca,
			Token: "header.claims.signature", Config: true,
		},
		"plugin": {
			Cluster: "west", Namespace: "mesh", Server: "https://api.west.example.com", CA: ca, TLSServerName: "kubernetes",
			AuthProvider: &AuthProvider{Name: "oidc", Config: map[string]string{"client-id": "meshctl", "id-token": "a: b\n"}},
		},
		"expiring": {
			Cluster: "cluster1", Namespace: "istio-system", Server: "https://[fd00::1]:6443", Token: "header.claims.signature",
			Annotations: map[string]string{AnnotationExpires: "2026-11-22T10:00:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secret, err := Build(spec)
			if err != nil {
				t.Fatal(err)
			}
			text, err := Encode(secret)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".yaml", text)

			clusters, err := DecodeFile("file", text)
			if err != nil || len(clusters) != 1 || clusters[0].Err != nil {
				t.Fatalf("decoded %v, error %v", clusters, err)
			}
			c := clusters[0]
			if c.ID != spec.Cluster || c.Server.Server != spec.Server || c.Server.TLSServerName != spec.TLSServerName ||
				string(c.Server.CertificateAuthorityData) != string(spec.CA) || c.User.Token != spec.Token {
				t.Errorf("decoded %+v of %+v", c.Server, spec)
			}
		})
	}
}

// TestInjection: no field of a Spec can add YAML to the secret.
func TestInjection(t *testing.T) {
	t.Parallel()
	good := Spec{Cluster: "cluster1", Namespace: "istio-system", Server: "https://10.0.0.1:6443", Token: "a.b.c"}
	for _, tc := range []struct {
		change func(*Spec)
		want   string
	}{
		{func(s *Spec) { s.Cluster = "a\nkind: Pod" }, "is not a valid DNS 1123 label"},
		{func(s *Spec) { s.Cluster = "UPPER" }, "is not a valid DNS 1123 label"},
		{func(s *Spec) { s.Cluster = "" }, "is not a valid DNS 1123 label"},
		{func(s *Spec) { s.Cluster = `a"b` }, "is not a valid DNS 1123 label"},
		{func(s *Spec) { s.Namespace = "a b" }, "is not a DNS label"},
		{func(s *Spec) { s.Server = "https://10.0.0.1\n  token: x" }, "want https://HOST:PORT"},
		{func(s *Spec) { s.Server = "10.0.0.1:6443" }, "want https://HOST:PORT"},
		{func(s *Spec) { s.Server = "http://10.0.0.1:6443" }, "want https://HOST:PORT"},
		{func(s *Spec) { s.Server = "https://user:word@10.0.0.1:6443" }, "want https://HOST:PORT"},
	} {
		spec := good
		tc.change(&spec)
		if _, err := Build(spec); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: error %v, want one with %q", spec, err, tc.want)
		}
	}
	odd := good
	odd.Server = `https://10.0.0.1:6443/"'#%20: {x}`
	odd.TLSServerName, odd.Token = "name\nusers: []", "t\n    exec: {command: x}"
	secret, err := Build(odd)
	if err != nil {
		t.Fatal(err)
	}
	clusters := Decode(secret)
	c := clusters[0]
	if c.Err != nil || c.User.Token != odd.Token || c.Server.TLSServerName != odd.TLSServerName || c.Server.Server != odd.Server || c.User.Exec != nil {
		t.Errorf("quotes and line breaks did not stay where they were: %v %q %q", c.Err, c.User.Token, c.Server.Server)
	}
}

func TestWithToken(t *testing.T) {
	t.Parallel()
	ends := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	stored := func(kubeconfigs map[string]string) *corev1.Secret {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "istio-system", Name: "s"}, Data: map[string][]byte{}}
		for key, text := range kubeconfigs {
			secret.Data[key] = []byte(text)
		}
		return secret
	}
	const kubeconfig = `apiVersion: v1
kind: Config
current-context: west
contexts: [{name: west, context: {cluster: west, user: west}}]
clusters: [{name: west, cluster: {server: "https://west.example", tls-server-name: kubernetes}}] # by hand
users: [{name: west, user: {token: USER}}]
`
	text := strings.Replace(kubeconfig, "USER", "old", 1)
	got, err := WithToken(stored(map[string]string{"west": text}), "new", ends)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(kubeconfig, "USER", "new", 1); string(got.Data["west"]) != want {
		t.Errorf("kubeconfig\n%s\nwant\n%s", got.Data["west"], want)
	}
	if got.Annotations[AnnotationExpires] != "2030-01-02T03:04:05Z" || got.Annotations[AnnotationCredential] != HashToken("new") {
		t.Errorf("annotations %v", got.Annotations)
	}
	for name, kubeconfigs := range map[string]map[string]string{
		"several clusters":     {"west": text, "east": text},
		"token in two lines":   {"west": strings.Replace(kubeconfig, "USER", "\"ol\\\nd\"", 1)},
		"no token":             {"west": strings.Replace(kubeconfig, "{token: USER}", "{username: u, password: p}", 1)},
		"token elsewhere, too": {"west": strings.Replace(kubeconfig, "USER", "west", 1)},
		"nothing":              {},
	} {
		if got, err := WithToken(stored(kubeconfigs), "new", ends); err == nil {
			t.Errorf("%s: no error, %s", name, got.Data["west"])
		}
	}
}
