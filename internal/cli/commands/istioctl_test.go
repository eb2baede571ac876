package commands

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestCommandsOfIstioctl: for a command that only istioctl has, the error names the nearest
// command of meshctl, or the reason why there is none.
func TestCommandsOfIstioctl(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"admin log --level ads:debug":      "log levels of control planes: meshctl log-level",
		"operator init":                    ": meshctl install",
		"profile list":                     ": meshctl install",
		"tag list":                         ": meshctl install --revision",
		"x revision list":                  ": meshctl install --revision",
		"dashboard envoy web-1":            "there are no dashboards",
		"d kiali":                          "there are no dashboards",
		"x check-inject web-1":             ": meshctl inject",
		"x add-to-mesh service web":        ": meshctl inject",
		"bug-report":                       "without private keys: meshctl pc all",
		"waypoint list":                    "there is no ambient mode",
		"ztunnel-config workload":          "there is no ambient mode",
		"options":                          ": meshctl environment",
		"x describe pod web-1":             ": meshctl explain endpoints",
		"experimental describe svc web":    ": meshctl explain endpoints",
		"x authz check web-1":              `it is meshctl authz`,
		"verify-install":                   ": meshctl check",
		"x precheck":                       ": meshctl check pre",
		"x envoy-stats web-1 -o prom":      "Envoy serves its statistics at /stats",
		"x metrics web":                    "control planes serve metrics",
		"x workload group create":          "it is meshctl workload",
		"x config list":                    ": meshctl environment",
		"x wait --for=distribution vs web": ": meshctl remote-clusters --wait",
		"x proxy-status":                   `unknown command "proxy-status" for "meshctl experimental", it is meshctl proxy-status`,
		"x version":                        `it is meshctl version`,
		"internal-debug syncz":             `unknown command "internal-debug" for "meshctl", it is meshctl experimental internal-debug`,
		"versio":                           `unknown command "versio" for "meshctl", did you mean "version"?`,
		"nothing --help":                   "unknown command \"nothing\" for \"meshctl\"\n",
		"pc analyze -h":                    "unknown command \"analyze\" for \"meshctl proxy-config\": it has all, bootstrap, ",
		"explain web.apps":                 "unknown command \"web.apps\" for \"meshctl explain\": it has endpoints, policies\n",
		"help nothing":                     "unknown command \"nothing\" for \"meshctl\"\n",
		"nothing":                          "unknown command \"nothing\" for \"meshctl\"\n",
		"pc analyze":                       "unknown command \"analyze\" for \"meshctl proxy-config\": it has all, bootstrap, ",
	} {
		var out, talk bytes.Buffer
		code := Run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, Now: time.Now, LookupEnv: clitest.HomeOnly(t.TempDir()),
		}, strings.Fields(typed))
		if code != cli.ExitUsage || out.Len() > 0 || !strings.Contains(talk.String(), want) || !strings.HasPrefix(talk.String(), "Error: unknown command ") {
			t.Errorf("%s: exit code %d, want %s: %s%s", typed, code, want, out.String(), talk.String())
		}
	}
}

// TestFlagsOfIstioctl: a flag of istioctl works, or the error says what to use instead.
func TestFlagsOfIstioctl(t *testing.T) {
	t.Parallel()
	service := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(service, []byte("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: apps}, spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		line string
		code int
		want string
	}{
		{"check cluster1 cluster2", cli.ExitUsage, "name clusters with --context cluster1,cluster2"},
		{"version --short", 0, `^\(devel\)\n$`},
		{"version -s --remote=false", 0, `^\(devel\)\n$`},
		{"analyze -f " + service, 0, `^nothing found in 1 object `},
		{"analyze --filename " + service, 0, `^nothing found in 1 object `},
		{"analyze --use-kube=false " + service, 0, `^nothing found in 1 object `},
		{"analyze --use-kube " + service, 1, `^Error: no kubeconfig`},
		{"analyze --remote-contexts west", 2, `--remote-contexts: --context EAST,WEST names several clusters, and --all-clusters `},
		{"analyze --color=false", 2, `unknown flag: --color: leave it out\n`},
		{"ps --revision canary", 2, `unknown flag: --revision: the command is about all revisions: leave it out\n`},
		{"pc clusters", 2, `give exactly one source: a workload, such as web-1\.apps or deploy/web, --admin`},
	} {
		code, stdout, stderr := runMeshctl(t, t.TempDir(), strings.Fields(tc.line)...)
		if said := stdout + stderr; code != tc.code || !regexp.MustCompile(tc.want).MatchString(said) {
			t.Errorf("%s: exit code %d, want %d and %s: %s", tc.line, code, tc.code, tc.want, said)
		}
	}
}

// TestExperimental: the group and its aliases have the commands.
func TestExperimental(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"experimental", "x", "exp"} {
		code, _, stderr := runMeshctl(t, t.TempDir(), group, "create-remote-secret", "--type", "local")
		if code != cli.ExitUsage || !strings.Contains(stderr, "unsupported type: local") {
			t.Errorf("%s: got exit code %d, %s", group, code, stderr)
		}
	}
}
