package remotesecret

import (
	"net/url"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

// FuzzDecode checks any text. An accepted kubeconfig opens no file, starts no process
// and has no forbidden address.
func FuzzDecode(f *testing.F) {
	f.Add(kubeconfig("server: https://west.example.com:6443", "token: t"))
	f.Add(kubeconfig("server: https://127.0.0.1:6443\nproxy-url: http://p", "exec: {command: x}"))
	f.Add(kubeconfig("server: http://169.254.169.254\ncertificate-authority: /etc/passwd", "tokenFile: /f\nas: root"))
	f.Add(kubeconfig("server: https://w\ninsecure-skip-tls-verify: true", "auth-provider: {name: oidc, config: {id-token: a.b.c}}"))
	f.Add("a: &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		clusters := Decode(secretOf(map[string]string{"west": text}))
		if len(clusters) != 1 || clusters[0].ID != "west" {
			t.Fatalf("one key gives %v", clusters)
		}
		c := &clusters[0]
		findings := Check(c, Options{Now: now(), InPod: true})
		if c.Err != nil {
			if len(findings) != 1 || findings[0].Code != Unreadable {
				t.Fatalf("of %v: %+v", c.Err, findings)
			}
			return
		}
		for _, found := range findings {
			if found.Field != "" && (found.Line < 1 || found.Reason == "" || found.Fix == "") {
				t.Fatalf("%+v", found)
			}
			if found.Allowed {
				t.Fatalf("allowed by nobody: %+v", found)
			}
		}
		if Refuse(findings) != nil || finding(findings, BadServer, "") != nil {
			return
		}
		u, s := &c.User, &c.Server
		if u.Exec != nil || u.TokenFile != "" || u.ClientKey != "" || u.ClientCertificate != "" || s.CertificateAuthority != "" ||
			s.InsecureSkipTLSVerify || s.ProxyURL != "" || u.Impersonate != "" || len(u.ImpersonateGroups) > 0 {
			t.Fatalf("passed: %+v", s)
		}
		if p := u.AuthProvider; p != nil && p.Name != providerOIDC {
			t.Fatalf("passed: auth provider %q", p.Name)
		}
		at, err := url.Parse(s.Server)
		if err != nil || at.Scheme != "https" || at.Host == "" {
			t.Fatalf("passed: server %q", s.Server)
		}

		// What passes, written as we write it, passes again and says the same.
		secret, err := Build(Spec{
			Cluster: "west", Namespace: mesh.DefaultSystemNamespace, Server: s.Server, TLSServerName: s.TLSServerName,
			CA: s.CertificateAuthorityData, Token: c.BearerToken(),
		})
		if err != nil {
			t.Fatalf("%q cannot be written: %v", s.Server, err)
		}
		again := Decode(secret)[0]
		if again.Err != nil || again.Server.Server != s.Server || again.Server.TLSServerName != s.TLSServerName ||
			again.User.Token != c.BearerToken() || string(again.Server.CertificateAuthorityData) != string(s.CertificateAuthorityData) {
			t.Fatalf("written and read again: %v, %+v, was %+v", again.Err, again.Server, s)
		}
	})
}

// FuzzDecodeFile decodes any file.
func FuzzDecodeFile(f *testing.F) {
	f.Add([]byte("kind: Secret\nmetadata: {name: a}\nstringData: {b: 'kind: Config'}\n---\nkind: List\nitems: [{kind: Secret, data: {a: YQ==}}]\n"))
	f.Add([]byte(kubeconfig("server: https://west", "token: t")))
	f.Fuzz(func(t *testing.T, text []byte) {
		clusters, err := DecodeFile("file", text)
		if err == nil && len(clusters) == 0 {
			return // a list of other kinds
		}
		for _, c := range clusters {
			if c.Err == nil && !c.ID.Valid() {
				t.Fatalf("cluster id %q", c.ID)
			}
			if len(Check(&c, Options{Now: now()})) == 0 && c.BearerToken() == "" && len(c.User.ClientCertificateData) == 0 {
				t.Fatalf("no credential and no finding: %+v", c.Server)
			}
		}
	})
}
