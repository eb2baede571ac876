package pccmd

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/envoy"
)

// runProxyConfig runs meshctl pc and returns its exit code and output.
func runProxyConfig(t *testing.T, args string) (code int, stdout, stderr string) {
	t.Helper()
	return clitest.Run(t, t.TempDir(), append([]string{"pc"}, strings.Fields(args)...), group())
}

// TestProxyConfigOfAnotherServer: the error says that the server is not Envoy.
func TestProxyConfigOfAnotherServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{}")
	}))
	defer server.Close()
	for _, command := range []string{"endpoints", "endpoints -o json", "eds", "bootstrap"} {
		code, stdout, stderr := runProxyConfig(t, command+" --admin "+server.URL)
		if code != cli.ExitFailure || stdout != "" || !strings.HasPrefix(stderr, "Error: admin interface "+server.URL+": the answer has no ") ||
			!strings.Contains(stderr, "is that Envoy's admin interface?") {
			t.Errorf("%s: exit code %d:\n%s\n%s", command, code, stdout, stderr)
		}
	}
}

// TestProxyConfigOfABareEnvoy: an Envoy without configuration is no error.
func TestProxyConfigOfABareEnvoy(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Envoy")
	}
	bootstrap := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(bootstrap, []byte("node: {id: test, cluster: test}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := envoy.Start(t, bootstrap, "-l", "error")
	for _, tc := range []struct{ command, stdout, stderr string }{
		{"endpoints", `^ENDPOINT +STATUS`, `^The Envoy has no clusters \(admin interface [\d.:]+\)\n$`},
		{"endpoints -o json", `^\[\]\n$`, `^The Envoy has no clusters \(admin interface [\d.:]+\)\n$`},
		{"eds", `^NAME +STATUS`, `^No endpoints \(admin interface [\d.:]+\)\n$`},
		{"ecds", `^ECDS NAME +TYPE\n$`, `^No extension configurations \(admin interface [\d.:]+\)\n$`},
		{"ecds -o json", `^\{\n +"ecdsFilters": \[\]\n\}\n$`, `^$`},
		{"all", `Envoy Version`, `no section of endpoint assignments: an Envoy without clusters leaves it out\.\n$`},
	} {
		code, stdout, stderr := runProxyConfig(t, tc.command+" --admin "+proxy.Admin)
		if code != cli.ExitOK || !regexp.MustCompile(tc.stdout).MatchString(stdout) || !regexp.MustCompile(tc.stderr).MatchString(stderr) {
			t.Errorf("%s: exit code %d, want %s and %s:\n%s\n%s", tc.command, code, tc.stdout, tc.stderr, stdout, stderr)
		}
	}
}
