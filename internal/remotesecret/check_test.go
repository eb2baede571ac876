package remotesecret

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

func now() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

// pair returns a certificate that ends at the time, and its key, in base64 of PEM.
func pair(t testing.TB, end time.Time) (cert, key string) {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: end.Add(-time.Hour * 24 * 365), NotAfter: end, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER)
}

func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// kubeconfig returns a kubeconfig with these fields, one per line, in its cluster and
// its user.
func kubeconfig(cluster, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: west
clusters:
- name: west
  cluster:
    %s
users:
- name: west
  user:
    %s
contexts:
- name: west
  context: {cluster: west, user: west}
`, strings.ReplaceAll(cluster, "\n", "\n    "), strings.ReplaceAll(user, "\n", "\n    "))
}

func secretOf(values map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "remote", Namespace: "istio-system"}, StringData: values}
}

// west decodes the cluster "west".
func west(t testing.TB, text string) *Cluster {
	t.Helper()
	return &Decode(secretOf(map[string]string{"west": text}))[0]
}

const good = "server: https://west.example.com:6443\ncertificate-authority-data: "

// refused checks refused fields: each has its code, place and severity, and is a
// warning if allowed.
func refused(t *testing.T, cases []refusal) {
	t.Helper()
	ca, _ := pair(t, now().Add(time.Hour*24*365))
	for _, tc := range cases {
		cluster, user := tc.cluster, tc.user
		if cluster == "" {
			cluster = good + ca
		} else if !strings.Contains(cluster, "server:") {
			cluster = "server: https://west.example.com:6443\n" + cluster
		}
		if user == "" {
			user = "token: opaque-secret"
		}
		c := west(t, kubeconfig(cluster, user))
		o := Options{Now: now(), InPod: tc.inPod}
		f := finding(Check(c, o), tc.code, tc.field)
		if f == nil {
			t.Errorf("%s%s: no finding %s at %s, but %+v", tc.cluster, tc.user, tc.code, tc.field, Check(c, o))
			continue
		}
		if f.Severity != Refused || f.Line == 0 || f.Fix == "" || f.Cluster != "west" || !strings.Contains(f.Place, "key west") {
			t.Errorf("%s: %+v", tc.code, *f)
		}
		err := Refuse(Check(c, o))
		if err == nil || !strings.Contains(err.Error(), "kubeconfig is not allowed: ") || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s: Refuse says %v", tc.code, err)
		}
		o.Allow = Allow{"east": {tc.code}}
		if f := finding(Check(c, o), tc.code, tc.field); f.Severity != Refused {
			t.Errorf("%s: allowed for another cluster: %+v", tc.code, *f)
		}
		o.Allow = Allow{"west": {tc.code}}
		f = finding(Check(c, o), tc.code, tc.field)
		if tc.never != (f.Severity == Refused) || tc.never == f.Allowed {
			t.Errorf("%s: allowed: %+v", tc.code, *f)
		}
	}
}

type refusal struct {
	cluster, user string
	code          Code
	field         string
	inPod         bool
	never         bool // cannot be allowed
}

func finding(findings []Finding, code Code, field string) *Finding {
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.Code == code && (field == "" || f.Field == field) })
	if i < 0 {
		return nil
	}
	return &findings[i]
}

const (
	atCluster = "clusters[0].cluster"
	atUser    = "users[0].user"
)

func TestExec(t *testing.T) {
	t.Parallel()
	refused(t, []refusal{
		{user: "exec:\n  apiVersion: client.authentication.k8s.io/v1\n  command: touch", code: Exec, field: atUser + ".exec"},
		{user: "token: t\nexec: {command: touch}", code: Exec, field: atUser + ".exec"},
	})
}

func TestFilesAndProviders(t *testing.T) {
	t.Parallel()
	refused(t, []refusal{
		{user: "tokenFile: /var/run/secrets/token", code: TokenFile, field: atUser + ".tokenFile"},
		{user: "token: t\ntokenFile: /etc/passwd", code: TokenFile, field: atUser + ".tokenFile"},
		{user: "client-key: /etc/key.pem", code: ClientKeyFile, field: atUser + ".client-key"},
		{user: "client-certificate: /etc/cert.pem", code: ClientCertificateFile, field: atUser + ".client-certificate"},
		{user: "auth-provider: {name: gcp}", code: AuthProviderName, field: atUser + ".auth-provider", never: true},
		{
			user: "auth-provider: {name: oidc, config: {id-token: t, idp-certificate-authority: /etc/passwd}}",
			code: CAFile, field: atUser + ".auth-provider.config.idp-certificate-authority",
		},
	})
	c := west(t, kubeconfig("server: https://w", "auth-provider: {name: oidc, config: {id-token: the-token}}"))
	if err := Refuse(Check(c, Options{Now: now()})); err != nil || c.BearerToken() != "the-token" {
		t.Errorf("oidc: %v, token %q", err, c.BearerToken())
	}
}

func TestCAFile(t *testing.T) {
	t.Parallel()
	refused(t, []refusal{{cluster: "certificate-authority: /etc/passwd", code: CAFile, field: atCluster + ".certificate-authority"}})
}

func TestInsecure(t *testing.T) {
	t.Parallel()
	refused(t, []refusal{
		{cluster: "insecure-skip-tls-verify: true", code: Insecure, field: atCluster + ".insecure-skip-tls-verify"},
		{cluster: "server: http://west.example.com", code: Plaintext, field: atCluster + ".server"},
	})
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	cases := []refusal{
		{cluster: "proxy-url: http://169.254.169.254", code: ProxyURL, field: atCluster + ".proxy-url"},
		{cluster: "proxy-url: http://proxy.example.com:3128", code: ProxyURL, field: atCluster + ".proxy-url"},
	}
	for _, server := range []string{
		"https://169.254.169.254", "https://[fd00:ec2::254]:80", "https://[fe80::1]:6443", "https://169.254.1.1",
		"https://metadata.google.internal", "https://[::ffff:169.254.169.254]", "https://224.0.0.1",
	} {
		cases = append(cases, refusal{cluster: "server: " + server, code: LinkLocal, field: atCluster + ".server"})
	}
	for _, server := range []string{
		"https://127.0.0.1:6443", "https://127.9.9.9", "https://[::1]:6443", "https://localhost:6443", "https://LOCALHOST.",
		"https://a.localhost", "https://0.0.0.0:6443", "https://[::]:6443", "https://[::ffff:127.0.0.1]",
	} {
		cases = append(cases, refusal{cluster: "server: " + server, code: Loopback, field: atCluster + ".server", inPod: true})
		c := west(t, kubeconfig("server: "+server, "token: t"))
		f := finding(Check(c, Options{Now: now()}), Loopback, "")
		if f == nil || f.Severity != Warning || f.Allowed {
			t.Errorf("%s outside of a pod: %+v", server, f)
		}
	}
	refused(t, cases)
	for _, server := range []string{"https://localhost.example.com", "https://10.0.0.1:6443", "https://notlocalhost:6443"} {
		c := west(t, kubeconfig("server: "+server, "token: t"))
		if f := finding(Check(c, Options{Now: now(), InPod: true}), Loopback, ""); f != nil {
			t.Errorf("%s: %+v", server, *f)
		}
	}
}

func TestImpersonation(t *testing.T) {
	t.Parallel()
	refused(t, []refusal{
		{user: "token: t\nas: system:admin", code: Impersonation, field: atUser + ".as"},
		{user: "token: t\nas-uid: \"1\"", code: Impersonation, field: atUser + ".as-uid"},
		{user: "token: t\nas-groups: [system:masters]", code: Impersonation, field: atUser + ".as-groups"},
		{user: "token: t\nas-user-extra: {scopes: [all]}", code: Impersonation, field: atUser + ".as-user-extra"},
	})
}

// TestCheckCredentials checks invalid credentials and credentials that end soon.
func TestCheckCredentials(t *testing.T) {
	t.Parallel()
	ca, _ := pair(t, now().Add(time.Hour*24*365))
	oldCA, _ := pair(t, now().Add(-time.Hour))
	cert, key := pair(t, now().Add(time.Hour*24*365))
	oldCert, oldKey := pair(t, now().Add(-time.Hour))
	soonCert, soonKey := pair(t, now().Add(time.Hour))
	token := func(left time.Duration) string {
		return "token: " + jwt(fmt.Sprintf(`{"iat":%d,"exp":%d}`, now().Add(left-24*time.Hour).Unix(), now().Add(left).Unix()))
	}
	certPair := func(cert, key string) string {
		return "client-certificate-data: " + cert + "\nclient-key-data: " + key
	}
	for name, tc := range map[string]struct {
		cluster, user string
		renewed       bool
		want          []string // severity code
	}{
		"good":                 {good + ca, "token: opaque", false, nil},
		"long-lived":           {good + ca, "token: " + jwt(`{}`), false, nil},
		"good for a month":     {good + ca, token(30 * 24 * time.Hour), false, nil},
		"ends soon":            {good + ca, token(24 * time.Hour), false, []string{"warning token-expires-soon"}},
		"is renewed":           {good + ca, token(7 * time.Hour), true, nil},
		"is not renewed":       {good + ca, token(3 * time.Hour), true, []string{"warning token-expires-soon"}},
		"ended":                {good + ca, token(-time.Second), false, []string{"broken token-expired"}},
		"no CA":                {"server: https://west", "token: t", false, []string{"warning no-ca"}},
		"CA ended":             {good + oldCA, "token: t", false, []string{"broken certificate-expired"}},
		"CA is none":           {good + "bm9uZQ==", "token: t", false, []string{"broken bad-ca"}},
		"no credential":        {good + ca, "{}", false, []string{"broken no-credential"}},
		"oidc without token":   {good + ca, "auth-provider: {name: oidc}", false, []string{"broken no-credential", "warning oidc-not-renewed"}},
		"password":             {good + ca, "username: a\npassword: b", false, []string{"warning password"}},
		"certificate":          {good + ca, certPair(cert, key), false, nil},
		"certificate ended":    {good + ca, certPair(oldCert, oldKey), false, []string{"broken certificate-expired"}},
		"certificate ends":     {good + ca, certPair(soonCert, soonKey), false, []string{"warning certificate-expires-soon"}},
		"another key":          {good + ca, certPair(cert, oldKey), false, []string{"broken bad-certificate"}},
		"no server":            {"tls-server-name: x\ncertificate-authority-data: " + ca, "token: t", false, []string{"broken bad-server"}},
		"server is no URL":     {"server: west:6443\ncertificate-authority-data: " + ca, "token: t", false, []string{"broken bad-server"}},
		"server without https": {"server: 10.0.0.1:6443\ncertificate-authority-data: " + ca, "token: t", false, []string{"broken bad-server"}},
		"token with a newline": {good + ca, "token: |\n  opaque", false, []string{"broken bad-token"}},
		"token with a space":   {good + ca, "token: 'a b'", false, []string{"broken bad-token"}},
		"oidc token, newline":  {good + ca, "auth-provider: {name: oidc, config: {id-token: \"a\\n\"}}", false, []string{"broken bad-token", "warning oidc-not-renewed"}},
		"token in base64":      {good + ca, "token: " + twice(jwt(`{}`)), false, []string{"broken bad-token"}},
		"CA in base64 twice":   {good + twice(ca), "token: t", false, []string{"broken bad-ca"}},
		"server with a user":   {"server: https://a:b@west\ncertificate-authority-data: " + ca, "token: t", false, []string{"broken bad-server"}},
		"server of a strange":  {"server: ftp://west\ncertificate-authority-data: " + ca, "token: t", false, []string{"broken bad-server"}},
	} {
		c := west(t, kubeconfig(tc.cluster, tc.user))
		c.Renewed = tc.renewed
		var got []string
		for _, f := range Check(c, Options{Now: now()}) {
			got = append(got, string(f.Severity)+" "+string(f.Code))
			if f.Fix == "" || f.Reason == "" {
				t.Errorf("%s: %+v", name, f)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestLife: the life of a token counts or, without a token, the life of the client
// certificate.
func TestLife(t *testing.T) {
	t.Parallel()
	end := now().Add(30 * 24 * time.Hour).Truncate(time.Second)
	cert, key := pair(t, end)
	certPair := "client-certificate-data: " + cert + "\nclient-key-data: " + key
	token := "token: " + jwt(fmt.Sprintf(`{"iat":%d,"exp":%d}`, now().Unix(), now().Add(time.Hour).Unix()))
	for user, want := range map[string]time.Time{
		"token: opaque": {}, "token: " + jwt(`{}`): {}, "username: a\npassword: b": {}, "client-certificate-data: bm9uZQ==": {},
		token: now().Add(time.Hour).Truncate(time.Second), certPair: end, certPair + "\n" + token: now().Add(time.Hour).Truncate(time.Second),
	} {
		c := west(t, kubeconfig(good+cert, user))
		begins, ends := c.Life()
		if !ends.Equal(want) || begins.IsZero() != want.IsZero() || !want.IsZero() && !begins.Before(ends) {
			t.Errorf("%.40s: from %v to %v, want %v", user, begins, ends, want)
		}
	}
}

func TestParseAllow(t *testing.T) {
	t.Parallel()
	allow, err := ParseAllow([]string{"west=insecure", "west=exec", "east=loopback"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		cluster mesh.ClusterID
		code    Code
		want    bool
	}{{"west", Insecure, true}, {"west", Exec, true}, {"west", Loopback, false}, {"east", Loopback, true}, {"north", Exec, false}} {
		if allow.Has(tc.cluster, tc.code) != tc.want {
			t.Errorf("%s of %s: want %v", tc.code, tc.cluster, tc.want)
		}
	}
	for _, bad := range []string{"west", "=exec", "west=", "west=everything", "west=auth-provider", "a b=exec"} {
		if _, err := ParseAllow([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// twice encodes a text, which may already be in base64.
func twice(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// TestReasons: a reason names the mistake, not only its effect.
func TestReasons(t *testing.T) {
	t.Parallel()
	ca, _ := pair(t, now().Add(time.Hour*24*365))
	whole := kubeconfig(good+ca, "token: t")
	for text, want := range map[string]string{
		kubeconfig(good+twice(ca), "token: t"):               "the CA is in base64 twice: encode it once",
		kubeconfig(good+ca, "token: "+twice(jwt(`{}`))):      "the token is in base64: a kubeconfig has the token as it is",
		kubeconfig(good+ca, "token: |\n  opaque"):            "the token has a line break or a space: API servers reject every request with it",
		kubeconfig("server: 10.0.0.1:6443", "token: opaque"): `server "10.0.0.1:6443" has no https://`,
		kubeconfig("server: west:6443", "token: opaque"):     `server "west:6443" has no https://`,
		kubeconfig("server: west", "token: opaque"):          `server "west" has no https://`,
		twice(whole): "kubeconfig: it is in base64: encode it once in data, and not in stringData",
	} {
		findings := Check(west(t, text), Options{Now: now()})
		if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Reason == want }) {
			t.Errorf("no reason %q in %+v", want, findings)
		}
	}
}

// TestRepeated: each further kubeconfig of a cluster is a warning that names the first.
func TestRepeated(t *testing.T) {
	t.Parallel()
	clusters := []Cluster{
		{ID: "west", Place: "one"},
		{ID: "east", Place: "two"},
		{ID: "west", Place: "three"},
		{Place: "unreadable"},
		{Place: "unreadable, too"},
		{ID: "west", Place: "four"},
	}
	findings := Repeated(clusters)
	if len(findings) != 2 || findings[0].Place != "three" || findings[1].Place != "four" {
		t.Fatalf("got %+v", findings)
	}
	for _, f := range findings {
		if f.Severity != Warning || f.Code != RepeatedCluster || f.Cluster != "west" || f.Fix == "" || !strings.Contains(f.Reason, "one") {
			t.Errorf("got %+v", f)
		}
	}
}
