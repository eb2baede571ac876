package commands

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/kube"
)

// nothing is an example of a command that finds nothing, and what it must say of what it looked at.
type nothing struct{ line, says string }

// showsMore are commands without an example, with the reason.
func showsMore() map[string]string {
	out := map[string]string{}
	for reason, commands := range map[string][]string{
		"it makes or changes something, and names it": {
			"agent", "agent proxy", "agent redirect", "certs cacerts", "certs crl", "certs intermediate-ca", "certs leaf", "certs root-ca",
			"certs bundle join", "certs bundle split", "certs rotate-root abort", "certs rotate-root finish", "certs rotate-root next",
			"certs rotate-root start", "create-remote-secret", "experimental create-remote-secret", "demo", "install", "log-level",
			"manifest generate", "multicluster drain", "multicluster link", "multicluster undrain", "multicluster weight", "proxy-config log",
			"remote-secret rotate", "serve", "token create", "token issuer", "upgrade", "workload entry configure", "workload run",
		},
		"its result always has a row, and nothing is an error that names the place": {
			"agent doctor", "agent request", "agent wait", "authz check", "authz matrix", "certs inspect", "certs status", "certs rotate-root plan",
			"experimental internal-debug", "explain endpoints", "proxy-config bootstrap", "remote-clusters", "remote-secret delete", "render", "version", "xds history", "xds timeline",
		},
		"it is about what it looked at, in a line for each": {"proxy-config rootca-compare", "proxy-config diff"},
	} {
		for _, c := range commands {
			out[c] = reason
		}
	}
	return out
}

// ofFiles need no cluster. The folder has certs, an empty file, a mesh and dumps.
func ofFiles() map[string][]nothing {
	return map[string][]nothing{
		"validate": {
			{"-f service.yaml", `^nothing found in 1 object in 1 namespace of service\.yaml$`},
			{"-f service.yaml -f mesh -o json", `^nothing found in 2 objects in 2 namespaces of mesh, service\.yaml$`},
			{"-f empty.yaml", `^nothing found to look at: no object that a control plane reads is in empty\.yaml$`},
		},
		"analyze": {
			{"service.yaml", `^nothing found in 1 object in 1 namespace of service\.yaml$`},
			{"mesh --remote-dir west=west -n nowhere", `^nothing found in 2 objects in 2 namespaces of mesh, west; not shown: 2 in other namespaces$`},
			{"-n shop faulty.yaml", `; not shown: 1 in other namespaces$`},
			{"faulty.yaml --suppress IST0101=*", `; not shown: 1 suppressed$`},
			{"faulty.yaml --suppress IST0101=* -o json", `; not shown: 1 suppressed$`},
			{"remark.yaml --output-threshold Error", `; not shown: \d+ below --output-threshold$`},
		},
		"inject":                   {{"--offline -f service.yaml", `^service\.yaml: nothing is injected: no object in it has pods$`}},
		"certs verify":             {{"certs", `^nothing found in \d+ places of certs$`}, {"certs/cluster1 certs/root-cert.pem", `of certs/cluster1, certs/root-cert\.pem$`}},
		"certs expiry":             {{"certs", `^none of \d+ has expired: certs$`}, {"certs --fail-within 1d -o json", `^none of \d+ has expired, or expires within 1d: certs$`}},
		"certs bundle diff":        {{"certs/root-cert.pem certs/cluster1/root-cert.pem", `^the bundles are equal: 1 root in certs/root-cert\.pem and in certs/cluster1/root-cert\.pem$`}},
		"certs rotate-root status": {{"certs", `^no rotation is under way in certs$`}},
		"proxy-config clusters":    {{"-f dump.json --fqdn none.example --port 80", `^None of 15 clusters matches --fqdn none\.example --port 80 \(dump\.json\)$`}, {"-f dump.json --subset none -o json", `^None of 15 clusters matches --subset none`}},
		"proxy-config listeners":   {{"-f dump.json --address 192.0.2.1", `^None of 12 listeners matches --address 192\.0\.2\.1 \(dump\.json\)$`}},
		"proxy-config routes":      {{"-f dump.json --name none -o yaml", `^None of 7 route configurations matches --name none \(dump\.json\)$`}},
		"proxy-config endpoints":   {{"-f clusters.json --status UNHEALTHY", `^No endpoint of 15 clusters matches --status UNHEALTHY \(clusters\.json\)$`}, {"-f eds.json --port 1 -o json", `^No endpoint of 4 clusters matches --port 1 \(eds\.json\)$`}},
		"proxy-config eds":         {{"-f eds.json --envoy-cluster none", `^No endpoint of 4 clusters matches --envoy-cluster none \(eds\.json\)$`}},
		"proxy-config ecds":        {{"-f dump.json", `^No extension configurations \(dump\.json\)$`}},
		"proxy-config all":         {{"-f bare.json --fqdn none", `^No entry of any table matches --fqdn none \(bare\.json\)$`}},
		"proxy-config secrets":     {{"-f bare.json", `^No active or warming secrets \(bare\.json\)$`}},
		"authz list":               {{"-f bare.json", `^The proxy has no ports of a service \(bare\.json\)$`}},
	}
}

// ofControlPlanes ask a control plane with one proxy.
func ofControlPlanes() map[string][]nothing {
	const plane = `control plane [\w.:-]+`
	return map[string][]nothing{
		"proxy-status":     {{"-n none", `^No proxy in namespace none is connected: looked at 1 proxy of ` + plane + `, in namespaces apps$`}},
		"xds nacks":        {{"", `^No response was refused by 1 proxy of ` + plane + `$`}},
		"gateways":         {{"", `^No gateway of a network is known to ` + plane + `$`}},
		"explain policies": {{"client-1.apps", `^No security policy selects client-1\.apps: looked at 0 in namespace apps, 0 in namespace istio-system$`}},
	}
}

// ofEmptyControlPlanes ask a control plane without proxies.
func ofEmptyControlPlanes() map[string][]nothing {
	const plane = `control plane [\w.:-]+`
	return map[string][]nothing{
		"proxy-status": {{"", `^No proxy is connected: looked at 0 proxies of ` + plane + `$`}},
		"xds views":    {{"", `^No proxy is connected to ` + plane + `$`}},
		"xds nacks":    {{"-o json", `^$`}, {"", `^No response was refused by 0 proxies of ` + plane + `$`}},
	}
}

// ofClusters ask a cluster in which nothing is installed.
func ofClusters() map[string][]nothing {
	return map[string][]nothing{
		"check":               {{"pre --crds --context cluster1", `^context cluster1: nothing found: looked at the version of Kubernetes, permissions, kinds, `}},
		"uninstall":           {{"--context cluster1", `^context cluster1: nothing is installed: no object has the label meshctl\.io/installation$`}},
		"remote-secret list":  {{"--context cluster1 -n NS", `^there are no remote secrets in namespace NS of context cluster1$`}},
		"remote-secret check": {{"--context cluster1 -n NS", `^there are no remote secrets in namespace NS of context cluster1$`}},
		"multicluster unlink": {{"cluster1 cluster2 -n NS", `^nothing to unlink: clusters cluster1, cluster2 have no remote secrets of each other in namespace NS$`}},
		"analyze":             {{"--context cluster1 -n NS --output-threshold Error --failure-threshold Error", `^nothing found in \d+ objects? in \d+ namespaces? of cluster cluster1, and the Secrets that Gateways name`}},
	}
}

// TestEveryCommandSaysWhatItLookedAt: every command has an example of finding nothing, or cannot find
// nothing. A new command needs one of both.
func TestEveryCommandSaysWhatItLookedAt(t *testing.T) {
	t.Parallel()
	known := showsMore()
	for _, table := range []map[string][]nothing{ofFiles(), ofControlPlanes(), ofEmptyControlPlanes(), ofClusters()} {
		for name := range table {
			known[name] = "an example"
		}
	}
	for _, cmd := range leaves() {
		if known[cmd] == "" {
			t.Errorf("meshctl %s: give an example in which it finds nothing", cmd)
		}
		delete(known, cmd)
	}
	for name := range known {
		t.Errorf("there is no command %s", name)
	}
}

// leaves returns the commands that do something, without the name of the program.
func leaves() []string {
	var out []string
	eachCommand(func(cmd *cobra.Command) {
		if name := strings.TrimPrefix(cmd.CommandPath(), "meshctl "); !cmd.HasSubCommands() || name == "agent" {
			out = append(out, name)
		}
	})
	return slices.DeleteFunc(out, func(name string) bool { return name == "environment" || name == "meshctl" })
}

// find runs the examples of a table.
func find(t *testing.T, table map[string][]nothing, ns string, run func(args ...string) (code int, stdout, stderr string)) {
	t.Helper()
	for name, examples := range table {
		for _, x := range examples {
			args := append(strings.Fields(name), strings.Fields(strings.ReplaceAll(x.line, "NS", ns))...)
			code, stdout, stderr := run(args...)
			want := regexp.MustCompile("(?m)" + strings.ReplaceAll(x.says, "NS", ns))
			if said := stderr + "\n" + stdout; code != 0 || !want.MatchString(said) {
				t.Errorf("%s: exit code %d, want 0 and %s:\n%s", strings.Join(args, " "), code, want, said)
			}
			if slices.Contains(args, "json") && !strings.HasPrefix(stdout, "[") && !strings.HasPrefix(stdout, "{") {
				t.Errorf("%s: no JSON: %s", strings.Join(args, " "), stdout)
			}
		}
	}
}

func TestNothingFoundInFiles(t *testing.T) {
	dumps, err := filepath.Abs("../../proxyconfig/testdata")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: NS}\nspec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n"
	const route = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: apps}\nspec: {hosts: [web], http: [{route: [{destination: {host: HOST}}]}]}\n"
	for name, text := range map[string]string{
		"empty.yaml": "", "service.yaml": strings.ReplaceAll(service, "NS", "apps"),
		"mesh/a.yaml": strings.ReplaceAll(service, "NS", "other"), "west/a.yaml": strings.ReplaceAll(service, "NS", "west"),
		"faulty.yaml": strings.ReplaceAll(service, "NS", "apps") + strings.ReplaceAll(route, "HOST", "none"),
		"remark.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: apps}\nspec: {clusterIP: 10.0.0.1, ports: [{name: odd, port: 80}]}\n",
		"bare.json":   `{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.BootstrapConfigDump"},{"@type":"type.googleapis.com/envoy.admin.v3.SecretsConfigDump"},{"@type":"type.googleapis.com/envoy.admin.v3.ListenersConfigDump"}]}`,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, of := range map[string]string{"dump.json": "c1-sleep.config.json", "clusters.json": "c1-sleep.clusters.json", "eds.json": "envoy.eds.json"} {
		if err := os.Symlink(filepath.Join(dumps, of), name); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (int, string, string) { return clitest.Run(t, t.TempDir(), args, groups()...) }
	for _, line := range []string{"certs root-ca --out certs", "certs intermediate-ca --root certs --out certs cluster1"} {
		if code, _, stderr := run(strings.Fields(line)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	find(t, ofFiles(), "", run)
}

func TestNothingFoundByControlPlanes(t *testing.T) {
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	find(t, ofControlPlanes(), "", m.Run)
	if err := m.Stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	m.Eventually(`^NAME[^\n]*\n$`, "ps")
	find(t, ofEmptyControlPlanes(), "", m.Run)
}

func TestNothingFoundInClusters(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	one, two := kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")
	ns, config := one.Namespace(t, "nothing"), kube.MergedKubeconfig(t, one, two)
	find(t, ofClusters(), ns, func(args ...string) (int, string, string) {
		var out, talk bytes.Buffer
		code := Run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, Now: time.Now, LookupEnv: clitest.HomeOnly(t.TempDir()),
		}, append(args, "--kubeconfig", config))
		return code, out.String(), talk.String()
	})
}
