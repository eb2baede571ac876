package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestCommandsOfIstioctl answers each command that istioctl has and meshctl does not
// with the nearest one, or that there is none.
func TestCommandsOfIstioctl(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"analyze":                            "meshctl has no such command: meshctl serve reports objects",
		"analyze -A --all-namespaces f.yaml": "meshctl has no such command: meshctl serve reports objects",
		"validate -f mesh.yaml":              "meshctl has no such command: meshctl serve reports objects",
		"admin log --level ads:debug":        "the nearest is meshctl log-level",
		"install --set profile=demo -y":      "meshctl installs nothing",
		"manifest generate":                  "meshctl installs nothing",
		"operator init":                      "meshctl installs nothing",
		"profile list":                       "meshctl installs nothing",
		"upgrade":                            "meshctl installs nothing",
		"uninstall --purge":                  "meshctl installs nothing",
		"tag list":                           "meshctl installs nothing",
		"x revision list":                    "meshctl installs nothing",
		"dashboard envoy web-1":              "meshctl has no dashboards",
		"d kiali":                            "meshctl has no dashboards",
		"kube-inject -f web.yaml":            "meshctl has no injector",
		"x check-inject web-1":               "meshctl has no injector",
		"x add-to-mesh service web":          "meshctl has no injector",
		"bug-report":                         "meshctl has no such command: meshctl pc all",
		"waypoint list":                      "meshctl has no ambient mode",
		"ztunnel-config workload":            "meshctl has no ambient mode",
		"options":                            "the nearest is meshctl environment",
		"x describe pod web-1":               "the nearest are meshctl explain endpoints",
		"experimental describe svc web":      "the nearest are meshctl explain endpoints",
		"x authz check web-1":                "meshctl has no such command: meshctl pc listeners",
		"x precheck":                         "meshctl has no such command: meshctl certs verify",
		"x envoy-stats web-1 -o prom":        "Envoy serves its statistics at /stats",
		"x metrics web":                      "control planes serve metrics",
		"x workload group create":            "docs/virtual-machines.md",
		"x config list":                      "the nearest is meshctl environment",
		"x wait --for=distribution vs web":   "the nearest are meshctl remote-clusters --wait",
		"x proxy-status":                     `unknown command "proxy-status" for "meshctl experimental", it is meshctl proxy-status`,
		"x version":                          `it is meshctl version`,
		"internal-debug syncz":               `unknown command "internal-debug" for "meshctl", it is meshctl experimental internal-debug`,
		"versio":                             `unknown command "versio" for "meshctl", did you mean "version"?`,
		"nothing":                            "unknown command \"nothing\" for \"meshctl\"\n",
		"pc analyze":                         "unknown command \"analyze\" for \"meshctl proxy-config\"\n",
	} {
		var out, talk bytes.Buffer
		code := Run(t.Context(), &Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, Now: time.Now, LookupEnv: homeOnly(t.TempDir()),
		}, strings.Fields(typed))
		if code != exitUsage || out.Len() > 0 || !strings.Contains(talk.String(), want) || !strings.HasPrefix(talk.String(), "Error: unknown command ") {
			t.Errorf("%s: exit code %d, want %s: %s%s", typed, code, want, out.String(), talk.String())
		}
	}
}
