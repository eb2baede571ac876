package commands

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// complete returns the completions of the last word, and the output on stderr.
func complete(t *testing.T, home string, env map[string]string, words ...string) (offered []string, talk string) {
	t.Helper()
	var out, said bytes.Buffer
	code := Run(t.Context(), &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &said, Now: time.Now,
		Environ: func() []string {
			var all []string
			for name, value := range env {
				all = append(all, name+"="+value)
			}
			return all
		},
		LookupEnv: func(name string) (string, bool) {
			if value, ok := env[name]; ok {
				return value, true
			}
			return clitest.HomeOnly(home)(name)
		},
	}, append([]string{"__complete"}, words...))
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, said.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := len(lines) - 1
	if lines[last] != ":4" { // no completion of files
		t.Errorf("directive %s", lines[last])
	}
	return lines[:last], said.String()
}

// completed is the message of cobra on stderr.
const completed = "Completion ended with directive: ShellCompDirectiveNoFileComp\n"

func TestCompleteNames(t *testing.T) {
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	config := filepath.Join(m.Home, "config.yaml")
	if err := os.WriteFile(config, []byte("server: "+m.Debug+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := []string{"--server", m.Debug}
	for _, tc := range []struct {
		name  string
		words []string
		env   map[string]string
		want  string
	}{
		{"proxies", append([]string{"xds", "history"}, append(server, "")...), nil, "[client-1.apps]"},
		{"what was typed", append([]string{"xds", "history"}, append(server, "cli")...), nil, "[client-1.apps]"},
		{"another beginning", append([]string{"xds", "history"}, append(server, "x")...), nil, "[]"},
		{"one argument", append([]string{"xds", "history"}, append(server, "a.b", "")...), nil, "[]"},
		{"the environment", []string{"xds", "history", ""}, map[string]string{"MESHCTL_SERVER": m.Debug}, "[client-1.apps]"},
		{"the configuration file", []string{"xds", "history", ""}, map[string]string{"MESHCTL_CONFIG": config}, "[client-1.apps]"},
		{"no such file", []string{"xds", "history", ""}, map[string]string{"MESHCTL_CONFIG": config + "~"}, "[]"},
		{"pages", append([]string{"x", "internal-debug"}, append(server, "config_")...), nil, "[config_dump]"},
		{"nobody there", []string{"xds", "history", "--server", "127.0.0.1:1", ""}, nil, "[]"},
		{"no address", []string{"xds", "history", "--server", "ftp://a", ""}, nil, "[]"},
	} {
		if got, talk := complete(t, m.Home, tc.env, tc.words...); fmt.Sprint(got) != tc.want || talk != completed {
			t.Errorf("%s: got %v, want %s; stderr %q", tc.name, got, tc.want, talk)
		}
	}
}

// TestCompleteNamesOfHostileServers: names that a shell could evaluate are dropped, and a
// silent server only delays the completion.
func TestCompleteNamesOfHostileServers(t *testing.T) {
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `[{"proxy": "web.apps"}, {"proxy": "$(id).apps"}, {"proxy": "-x.apps"}, {"proxy": "a.b\nc.d"}, {"proxy": "a\tb"}, {"proxy": "web.apps"}]`)
	}))
	defer hostile.Close()
	if got, _ := complete(t, t.TempDir(), nil, "xds", "history", "--server", hostile.Listener.Addr().String(), ""); fmt.Sprint(got) != "[web.apps]" {
		t.Errorf("got %q", got)
	}
	ended := make(chan struct{}, 1)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done() // when the request ends
		ended <- struct{}{}
	}))
	defer silent.Close()
	if got, talk := complete(t, t.TempDir(), nil, "xds", "history", "--timeout", "1h", "--server", silent.Listener.Addr().String(), ""); len(got) != 0 || talk != completed {
		t.Errorf("got %q, stderr %q", got, talk)
	}
	<-ended
}
