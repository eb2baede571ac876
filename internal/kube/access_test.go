package kube

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

const two = `apiVersion: v1
kind: Config
current-context: east
clusters:
- {name: e, cluster: {server: "https://east.example.com:6443", certificate-authority-data: Y2E=}}
- {name: w, cluster: {server: "https://west.example.com:6443"}}
users:
- {name: e, user: {token: east-token}}
- {name: w, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}}}
contexts:
- {name: east, context: {cluster: e, user: e, namespace: mesh}}
- {name: west, context: {cluster: w, user: w}}
`

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := write("config", two)
	empty := write("empty", "kind: Config\napiVersion: v1\n")
	home := filepath.Dir(write("home/.kube/config", strings.ReplaceAll(two, "east.example.com", "home.example.com")))
	pod := filepath.Dir(write("pod/token", "t"))
	write("pod/ca.crt", "ca")
	write("pod/namespace", "istio-system\n")

	for name, tc := range map[string]struct {
		options Options
		env     map[string]string
		host    string // of the result
		context string
		ns      string
		err     string
	}{
		"file":        {Options{Kubeconfig: file}, nil, "https://east.example.com:6443", "east", "mesh", ""},
		"context":     {Options{Kubeconfig: file, Context: "west"}, nil, "https://west.example.com:6443", "west", "", ""},
		"no context":  {Options{Kubeconfig: file, Context: "north"}, nil, "", "", "", `no context "north"; it has east, west`},
		"no file":     {Options{Kubeconfig: filepath.Join(dir, "none")}, nil, "", "", "", "no such file"},
		"empty file":  {Options{Kubeconfig: empty}, nil, "", "", "", "has no clusters"},
		"variable":    {Options{}, map[string]string{"KUBECONFIG": empty + ":" + file}, "https://east.example.com:6443", "east", "mesh", ""},
		"file first":  {Options{Kubeconfig: file}, map[string]string{"KUBECONFIG": empty}, "https://east.example.com:6443", "east", "mesh", ""},
		"no variable": {Options{}, map[string]string{"KUBECONFIG": "none:" + filepath.Join(dir, "nor this"), "HOME": filepath.Dir(home)}, "", "", "", "$KUBECONFIG names none, " + filepath.Join(dir, "nor this") + ", which does not exist"},
		"some there":  {Options{}, map[string]string{"KUBECONFIG": "none:" + file}, "https://east.example.com:6443", "east", "mesh", ""},
		"home":        {Options{}, map[string]string{"HOME": filepath.Dir(home)}, "https://home.example.com:6443", "east", "mesh", ""},
		"pod":         {Options{PodDir: pod}, map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, "https://[fd00::1]:443", "", "istio-system", ""},
		"broken pod":  {Options{PodDir: dir}, map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}, "", "", "", "access of the pod"},
		"nothing":     {Options{}, nil, "", "", "", "no kubeconfig: name one with --kubeconfig"},
		"none of env": {Options{}, map[string]string{"KUBECONFIG": filepath.Join(dir, "none")}, "", "", "", "$KUBECONFIG names "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := tc.options
			o.LookupEnv = func(name string) (string, bool) { value, ok := tc.env[name]; return value, ok }
			o.Timeout, o.As, o.AsGroups = RequestTimeout, "somebody", []string{"some"}
			access, err := Load(o)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c := access.Config
			if c.Host != tc.host || access.Context != tc.context || access.Namespace != tc.ns || access.InPod != (tc.context == "") {
				t.Errorf("got %s of %+v", c.Host, access)
			}
			if c.QPS != 50 || c.Burst != 100 || c.Timeout != 15*time.Second || c.Impersonate.UserName != "somebody" || len(c.Impersonate.Groups) != 1 {
				t.Errorf("got QPS %v, burst %v, timeout %v, impersonation %+v", c.QPS, c.Burst, c.Timeout, c.Impersonate)
			}
			if west := access.Context == "west"; west != (c.ExecProvider != nil) {
				t.Errorf("a person's own plug-in: %v", c.ExecProvider)
			}
		})
	}
	names, err := Contexts(Options{Kubeconfig: file})
	if diff := cmp.Diff([]string{"east", "west"}, names); diff != "" || err != nil {
		t.Errorf("contexts: %v %s", err, diff)
	}
}

// api starts a server that returns the credential of each request.
func api(t *testing.T) (url string, roots []byte) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "https://169.254.169.254/", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	t.Cleanup(server.Close)
	return server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func remote(t *testing.T, kubeconfig string) *remotesecret.Cluster {
	t.Helper()
	clusters := remotesecret.Decode(&corev1.Secret{Data: map[string][]byte{"west": []byte(kubeconfig)}})
	if clusters[0].Err != nil {
		t.Fatal(clusters[0].Err)
	}
	return &clusters[0]
}

func kubeconfigOf(server, cluster, user string) string {
	return `clusters: [{name: w, cluster: {server: "` + server + `", ` + cluster + `}}]
users: [{name: w, user: {` + user + `}}]
contexts: [{name: w, context: {cluster: w, user: w}}]
`
}

func get(t *testing.T, config *rest.Config, path string) (string, error) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(config)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

func TestRemote(t *testing.T) {
	t.Parallel()
	server, roots := api(t)
	secret, err := remotesecret.Build(remotesecret.Spec{
		Cluster: "west", Namespace: "istio-system", Server: server, CA: roots, Token: "west-token",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &remotesecret.Decode(secret)[0]
	config, err := Remote(c, RemoteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := get(t, config, "/")
	if err != nil || body != "Bearer west-token" {
		t.Errorf("the server saw %q, error %v", body, err)
	}
	if _, err = get(t, config, "/redirect"); err == nil || !strings.Contains(err.Error(), "is not followed") {
		t.Errorf("a redirect: %v", err)
	}

	inPod := RemoteOptions{Options: remotesecret.Options{InPod: true}}
	if _, err := Remote(c, inPod); err == nil || !strings.Contains(err.Error(), "kubeconfig is not allowed: server 127.0.0.1") {
		t.Errorf("loopback in a pod: %v", err)
	}
	inPod.Allow = remotesecret.Allow{"west": {remotesecret.Loopback}}
	if config, err = Remote(c, inPod); err != nil {
		t.Fatal(err)
	}
	if body, err = get(t, config, "/"); err != nil || body != "Bearer west-token" {
		t.Errorf("allowed loopback: the server saw %q, error %v", body, err)
	}
}

// TestRemoteAllowed: a code that is allowed for a cluster works for that cluster only.
func TestRemoteAllowed(t *testing.T) {
	t.Parallel()
	server, roots := api(t)
	dir := t.TempDir()
	path := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	ca := path("ca.crt", string(roots), 0o600)
	token := path("token", "from-a-file", 0o600)
	ran := filepath.Join(dir, "ran")
	plugin := path("plugin", `#!/bin/sh
touch `+ran+`
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "from-a-command"}}'
`, 0o700)
	for name, tc := range map[string]struct {
		cluster, user string
		codes         []remotesecret.Code
		want          string
	}{
		"insecure":   {"insecure-skip-tls-verify: true", "token: t", []remotesecret.Code{remotesecret.Insecure}, "Bearer t"},
		"ca file":    {"certificate-authority: " + ca, "token: t", []remotesecret.Code{remotesecret.CAFile}, "Bearer t"},
		"token file": {"certificate-authority: " + ca, "tokenFile: " + token, []remotesecret.Code{remotesecret.CAFile, remotesecret.TokenFile}, "Bearer from-a-file"},
		"exec": {
			"certificate-authority: " + ca, "exec: {apiVersion: client.authentication.k8s.io/v1, command: " + plugin + "}",
			[]remotesecret.Code{remotesecret.CAFile, remotesecret.Exec},
			"Bearer from-a-command",
		},
	} {
		c := remote(t, kubeconfigOf(server, tc.cluster, tc.user))
		for i := range tc.codes {
			// all but one, and all for another cluster
			allow := remotesecret.Allow{"west": append(append([]remotesecret.Code{}, tc.codes[:i]...), tc.codes[i+1:]...), "east": tc.codes}
			if _, err := Remote(c, RemoteOptions{Options: remotesecret.Options{Allow: allow}}); err == nil {
				t.Errorf("%s: accepted without %s", name, tc.codes[i])
			}
		}
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("%s: the plug-in ran without being allowed", name)
		}
		config, err := Remote(c, RemoteOptions{Options: remotesecret.Options{Allow: remotesecret.Allow{mesh.ClusterID("west"): tc.codes}}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, err := get(t, config, "/")
		if err != nil || body != tc.want {
			t.Errorf("%s: the server saw %q, error %v, want %q", name, body, err, tc.want)
		}
		if name == "exec" {
			if _, err := os.Stat(ran); err != nil {
				t.Errorf("the plug-in did not run: %v", err)
			}
		}
		if err := os.Remove(ran); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}
