package remotesecret

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestHostileText: huge, broken or ambiguous text is an error with its line. Other
// clusters of the Secret load.
func TestHostileText(t *testing.T) {
	t.Parallel()
	ok := kubeconfig("server: https://west", "token: t")
	var many strings.Builder
	many.WriteString("current-context: c999\ncontexts:\n")
	for i := range 1000 {
		fmt.Fprintf(&many, "- {name: c%d, context: {cluster: k%d, user: u}}\n", i, i)
	}
	many.WriteString("users: [{name: u, user: {token: t}}]\nclusters:\n")
	for i := range 1000 {
		fmt.Fprintf(&many, "- {name: k%d, cluster: {server: 'https://k%d'}}\n", i, i)
	}
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	nested := strings.Repeat("[", 10_000)
	values := map[string]string{
		"good":     ok,
		"many":     many.String(),
		"empty":    " \n",
		"large":    ok + "#" + strings.Repeat("x", MaxSize),
		"bomb":     bomb.String() + ok,
		"nested":   "extensions: " + nested,
		"tab":      "kind: Config\n\tcurrent-context: a",
		"twice":    ok + "current-context: west\n",
		"second":   ok + "---\nkind: Config\n",
		"list":     "- a\n",
		"text":     "hello",
		"null":     "null",
		"binary":   "\x00\xff\xfe",
		"kind":     "kind: Pod\napiVersion: v1\n",
		"type":     kubeconfig("server: [a]", "token: t"),
		"base64":   kubeconfig("server: https://w\ncertificate-authority-data: '***'", "token: secret-token"),
		"context":  strings.Replace(ok, "current-context: west", "current-context: east", 1),
		"none":     "kind: Config",
		"cluster":  strings.Replace(ok, "cluster: west, user", "cluster: east, user", 1),
		"user":     strings.Replace(ok, "user: west}", "user: east}", 1),
		"clusters": strings.Replace(ok, "clusters:\n", "clusters:\n- {name: west, cluster: {server: 'https://evil'}}\n", 1),
		"no!":      ok,
	}
	want := map[mesh.ClusterID]string{
		"good":     "",
		"many":     "",
		"empty":    "kubeconfig is empty",
		"large":    "want at most 262144",
		"bomb":     "aliases add more than 1 MiB",
		"nested":   "kubeconfig: line",
		"tab":      "line 2",
		"twice":    `line 15: key "current-context" is given twice, first in line 3`,
		"second":   "line 16: a second YAML document",
		"list":     "it is no YAML mapping",
		"text":     "it is no YAML mapping",
		"null":     "it is no YAML mapping",
		"binary":   "kubeconfig",
		"kind":     `it is of kind "Pod"`,
		"type":     "cluster.server of type string",
		"base64":   "base64",
		"context":  `current-context "east": there is none of that name`,
		"none":     "current-context is not set, and there are 0 contexts",
		"cluster":  `cluster "east": there is none of that name`,
		"user":     `user "east": there is none of that name`,
		"clusters": `cluster "west": there are several of that name`,
		"no!":      `cluster id "no!"`,
	}
	clusters := Decode(secretOf(values))
	if len(clusters) != len(values) {
		t.Fatalf("%d clusters of %d", len(clusters), len(values))
	}
	for i, c := range clusters {
		if i > 0 && clusters[i-1].ID >= c.ID {
			t.Errorf("%s comes after %s", c.ID, clusters[i-1].ID)
		}
		switch expect := want[c.ID]; {
		case expect == "" && c.Err != nil:
			t.Errorf("%s: %v", c.ID, c.Err)
		case expect != "" && (c.Err == nil || !strings.Contains(c.Err.Error(), expect)):
			t.Errorf("%s: error %v, want one with %q", c.ID, c.Err, expect)
		case c.Err != nil && (strings.Contains(c.Err.Error(), "secret-token") || len(c.Err.Error()) > 300):
			t.Errorf("%s: the error is %d bytes long or tells the token: %v", c.ID, len(c.Err.Error()), c.Err)
		}
		if findings := Check(&c, Options{Now: now()}); c.Err != nil && (len(findings) != 1 || findings[0].Code != Unreadable) {
			t.Errorf("%s: findings %+v", c.ID, findings)
		}
		if c.ID == "many" && c.Server.Server != "https://k999" {
			t.Errorf("of 1000 clusters, the current is %s", c.Server.Server)
		}
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	secret := &corev1.Secret{
		Data:       map[string][]byte{"b": []byte(kubeconfig("server: https://b", "token: b")), "a": []byte("old")},
		StringData: map[string]string{"a": kubeconfig("server: https://a", "token: a")},
	}
	clusters := Decode(secret)
	if len(clusters) != 2 || clusters[0].Server.Server != "https://a" || clusters[1].Server.Server != "https://b" {
		t.Fatalf("got %v", clusters)
	}
	a, b := clusters[0], clusters[1]
	if a.Hash == b.Hash || a.CredentialHash() == b.CredentialHash() || a.CredentialHash() != HashToken("a") {
		t.Errorf("hashes %s %s, of credentials %s %s", a.Hash, b.Hash, a.CredentialHash(), b.CredentialHash())
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s", a, a, a, a), slog.AnyValue(a).Resolve().String()} {
		if strings.Contains(text, "https://a") || !strings.Contains(text, "cluster a (secret /, key a)") {
			t.Errorf("printed as %s", text)
		}
	}
	if got := Decode(&corev1.Secret{}); len(got) != 0 {
		t.Errorf("an empty secret has %v", got)
	}

	config, err := Build(Spec{Cluster: "west", Namespace: "istio-system", Config: true, Server: "https://west", Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if got := Decode(config); len(got) != 1 || got[0].ID != "west" || got[0].Err != nil {
		t.Errorf("the secret of a configuration cluster: %v", got)
	}

	// Older tools of Istio print more, and the context may be left out.
	c := west(t, `apiVersion: v1
kind: Config
preferences: {}
clusters: [{name: x, cluster: {server: https://west}}]
users: [{name: 'y', user: {token: t}}]
contexts: [{name: z, context: {cluster: x, user: 'y', namespace: mesh}}]
`)
	if c.Err != nil || c.ID != "west" || c.Server.Server != "https://west" || c.Namespace != "mesh" {
		t.Errorf("got %+v, error %v", c.Server, c.Err)
	}
}

// TestNamespacesOfAnnotations: only a missing annotation means all namespaces. An empty one means
// none, and one with an invalid name is an error.
func TestNamespacesOfAnnotations(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        []string
		err         string
	}{
		"missing": {nil, nil, ""},
		"empty":   {map[string]string{AnnotationNamespaces: ""}, []string{}, ""},
		"commas":  {map[string]string{AnnotationNamespaces: ", ,"}, []string{}, ""},
		"names":   {map[string]string{AnnotationNamespaces: "shop, bank,shop"}, []string{"shop", "bank"}, ""},
		"invalid": {map[string]string{AnnotationNamespaces: "Shop"}, []string{}, `annotation meshctl.io/namespaces: "Shop" is not a namespace`},
		"all":     {map[string]string{AnnotationNamespaces: "*"}, []string{}, `"*" is not a namespace`},
	} {
		secret := &corev1.Secret{Data: map[string][]byte{"a": []byte(kubeconfig("server: https://a", "token: a"))}}
		secret.Annotations = tt.annotations
		c := Decode(secret)[0]
		if !slices.Equal(c.Namespaces, tt.want) || (c.Namespaces == nil) != (tt.want == nil) || c.CredentialNamespaces != nil {
			t.Errorf("%s: %#v, credentials of %#v", name, c.Namespaces, c.CredentialNamespaces)
		}
		if (c.Err == nil) != (tt.err == "") || c.Err != nil && !strings.Contains(c.Err.Error(), tt.err) {
			t.Errorf("%s: error %v", name, c.Err)
		}
	}
}

func TestDecodeFile(t *testing.T) {
	t.Parallel()
	secret := func(name string) string {
		built, err := Build(Spec{Cluster: mesh.ClusterID(name), Namespace: "istio-system", Server: "https://" + name, Token: "t"})
		if err != nil {
			t.Fatal(err)
		}
		text, err := Encode(built)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	indent := func(text string) string {
		return "- " + strings.ReplaceAll(strings.TrimSpace(strings.TrimSuffix(strings.SplitAfterN(text, "\n", 2)[1], "---\n")), "\n", "\n  ") + "\n"
	}
	list := "apiVersion: v1\nkind: List\nitems:\n" + indent(secret("three")) + indent(secret("four"))
	text := secret("one") + secret("two") + list + "---\nkind: Pod\n---\na: b: c\n---\n" + kubeconfig("server: https://west", "token: t")
	clusters, err := DecodeFile("file.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range clusters {
		got = append(got, fmt.Sprintf("%s %v", c.ID, errors.Unwrap(c.Err) != nil || c.Err != nil))
	}
	want := []string{"one false", "two false", "three false", "four false", " true", " true", "west false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, empty := range []string{"", "# nothing\n---\n"} {
		if _, err := DecodeFile("f", []byte(empty)); err == nil {
			t.Errorf("%q is accepted", empty)
		}
	}
}

func TestPublishedServer(t *testing.T) {
	t.Parallel()
	got, err := PublishedServer([]byte("kind: Config\nclusters: [{name: '', cluster: {server: https://10.0.0.1:6443, certificate-authority-data: Y2E=}}]\n"))
	if err != nil || got.Server != "https://10.0.0.1:6443" || string(got.CertificateAuthorityData) != "ca" {
		t.Errorf("got %+v, error %v", got, err)
	}
	for _, text := range []string{"", "kind: Config", "clusters: [{}, {}]", "clusters: 1", strings.Repeat("#", MaxSize+1)} {
		if _, err := PublishedServer([]byte(text)); err == nil {
			t.Errorf("%.40q is accepted", text)
		}
	}
}
