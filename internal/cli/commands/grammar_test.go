package commands

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/test/clitest"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// ofIstioIptables are flags of istio-iptables, which templates of Istio's injector call.
const ofIstioIptables = "meshctl agent redirect"

// eachCommand calls check for every command of meshctl, without those of cobra.
func eachCommand(check func(*cobra.Command)) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		check(cmd)
	}
	walk(treeForWords())
}

// TestShorthandsHaveOneMeaning: a letter is the same flag in all commands.
func TestShorthandsHaveOneMeaning(t *testing.T) {
	t.Parallel()
	meanings := map[string][]string{
		"A": {"all-namespaces"}, "L": {"list-analyzers", "list"}, "R": {"recursive"}, "S": {"suppress"},
		"c": {"kubeconfig"}, "f": {"file"}, "i": {"istioNamespace"}, "l": {"selector"}, "n": {"namespace"}, "o": {"output"},
		"r": {"revision", "reset"}, // both as in istioctl
		"s": {"set", "short"}, "v": {"verbose", "verbosity", "version"}, "w": {"watch"}, "y": {"yes"},
	}
	used := map[string]bool{}
	eachCommand(func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Shorthand == "" || cmd.CommandPath() == ofIstioIptables {
				return
			}
			used[f.Shorthand] = true
			if !slices.Contains(meanings[f.Shorthand], f.Name) {
				t.Errorf("%s: -%s is --%s, elsewhere %v", cmd.CommandPath(), f.Shorthand, f.Name, meanings[f.Shorthand])
			}
		})
		for long, short := range map[string]string{"file": "f", "output": "o", "namespace": "n", "istioNamespace": "i"} {
			if f := cmd.Flags().Lookup(long); f != nil && !f.Hidden && f.Shorthand != short && cmd.CommandPath() != ofIstioIptables {
				t.Errorf("%s: --%s has no -%s", cmd.CommandPath(), long, short)
			}
		}
	})
	for letter := range meanings {
		if !used[letter] {
			t.Errorf("no command has -%s", letter)
		}
	}
}

// TestFileAndFilename: every command with -f has --file, and kubectl's name for it.
func TestFileAndFilename(t *testing.T) {
	t.Parallel()
	found := 0
	eachCommand(func(cmd *cobra.Command) {
		if cmd.Flags().Lookup("file") == nil {
			return
		}
		found++
		for _, flag := range []string{"-f", "--file", "--filename"} {
			cmd, _, err := treeForWords().Find(strings.Fields(cmd.CommandPath())[1:])
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.ParseFlags([]string{flag, "x.yaml"}); err != nil {
				t.Errorf("%s: %v", cmd.CommandPath(), err)
				continue
			}
			if f := cmd.Flags().Lookup("file"); !f.Changed || !strings.Contains(f.Value.String(), "x.yaml") {
				t.Errorf("%s %s x.yaml sets --file to %q", cmd.CommandPath(), flag, f.Value)
			}
		}
		if f := cmd.Flags().Lookup("filename"); f == nil || !f.Hidden {
			t.Errorf("%s: --filename is no hidden alias of --file", cmd.CommandPath())
		}
	})
	if found < 15 {
		t.Errorf("found %d commands with --file", found)
	}
}

// TestFlagsHaveOnePlaceholder: a flag takes the same kind of value in all commands, and its
// help says which.
func TestFlagsHaveOnePlaceholder(t *testing.T) {
	t.Parallel()
	// Flags that take a value of several kinds, or a choice between some of them.
	several := map[string][]string{
		"api-server": {"url", "choice"}, "ca": {"file", "directory", "choice"}, "issuer": {"url", "directory"},
		"name": {"name", "context=name"}, "out": {"file", "directory"}, "revision": {"name", "revision"},
		"service-account": {"account", "namespace/name"},
	}
	fixed := map[string]string{
		"output": "format", "file": "file", "namespace": "namespace", "istioNamespace": "namespace", "context": "context", "kubeconfig": "file",
		"from": "workload", "proxy": "workload", "server": "host:port", "cluster": "cluster", "cluster-id": "name", "admin": "host:port",
	}
	nothing := regexp.MustCompile(`^(string|strings|stringArray|Path)$`)
	known := map[string]string{}
	eachCommand(func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name, _ := pflag.UnquoteUsage(f)
			if f.Hidden || cmd.CommandPath() == ofIstioIptables && f.Shorthand != "" {
				return
			}
			if nothing.MatchString(name) && f.Name != "path" {
				t.Errorf("%s: the help of --%s calls its value %s", cmd.CommandPath(), f.Name, name)
			}
			name = strings.ToLower(name)
			if slices.Contains(several[f.Name], name) {
				return
			}
			if known[f.Name] == "" {
				known[f.Name] = fixed[f.Name]
			}
			if known[f.Name] == "" {
				known[f.Name] = name
			}
			if known[f.Name] != name {
				t.Errorf("%s: --%s takes a %s, elsewhere a %s", cmd.CommandPath(), f.Name, name, known[f.Name])
			}
		})
	})
	for name := range fixed {
		if known[name] == "" {
			t.Errorf("no command has --%s", name)
		}
	}
}

// TestEarlierFlags: flags that have another name now still work.
func TestEarlierFlags(t *testing.T) {
	t.Parallel()
	for line, name := range map[string]string{
		"pc endpoints web --cluster outbound|80||a":           "envoy-cluster",
		"pc eds web --cluster outbound|80||a":                 "envoy-cluster",
		"authz check web --from apps/web":                     "principal",
		"create-remote-secret --server auto":                  "api-server",
		"x create-remote-secret --server auto":                "api-server",
		"multicluster link a b --server auto":                 "api-server",
		"remote-secret rotate --from west --to east":          "context",
		"validate --filename a.yaml":                          "file",
		"certs expiry --contexts a,b":                         "context",
		"inject -f app.yaml -o out.yaml":                      "output",
		"remote-secret delete west --to east --from west":     "from",
		"explain endpoints hello.sample --from web-1.apps":    "from",
		"install --filename values.yaml --cluster-id cluster": "file",
	} {
		words := strings.Fields(line)
		cmd, rest, err := treeForWords().Find(words)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		} else if !cmd.Flags().Changed(name) {
			t.Errorf("%s: --%s is not set", line, name)
		}
	}
}

// TestEveryReaderTakesSeveralClusters: each command that reads clusters takes several contexts, and
// --all-clusters. The others write, run in a cluster, or are about the secrets of one.
func TestEveryReaderTakesSeveralClusters(t *testing.T) {
	t.Parallel()
	others := map[string]bool{ // whether they take several contexts
		"serve": false, "install": false, "upgrade": false, "uninstall": false, "manifest generate": false, "inject": false, "workload entry configure": false,
		"create-remote-secret": false, "experimental create-remote-secret": false,
		"remote-secret rotate": false, "remote-secret delete": false, "multicluster drain": true, "multicluster undrain": true, "multicluster weight": true,
		"certs cacerts": true, "certs crl": true, "certs rotate-root plan": true, "certs rotate-root start": true, "certs rotate-root next": true,
		"certs rotate-root finish": true, "certs rotate-root abort": true, "certs rotate-root status": true,
	}
	readers := 0
	eachCommand(func(cmd *cobra.Command) {
		context, all := cmd.Flags().Lookup("context"), cmd.Flags().Lookup("all-clusters")
		if context == nil {
			if all != nil {
				t.Errorf("%s has --all-clusters without --context", cmd.CommandPath())
			}
			return
		}
		_, list := context.Value.(pflag.SliceValue)
		several, other := others[strings.TrimPrefix(cmd.CommandPath(), "meshctl ")]
		switch {
		case other && (list != several || all != nil):
			t.Errorf("%s: --context takes a list: %v, --all-clusters: %v", cmd.CommandPath(), list, all != nil)
		case other:
		case !list || all == nil:
			t.Errorf("%s: --context takes a list: %v, --all-clusters: %v; a command that reads clusters has both", cmd.CommandPath(), list, all != nil)
		default:
			readers++
		}
	})
	if readers < 30 {
		t.Errorf("found %d commands that read several clusters", readers)
	}
}

// takesWorkload returns the words before the workload of a command that takes one.
func takesWorkload(cmd *cobra.Command) []string {
	words := strings.Fields(cmd.CommandPath())[1:]
	switch {
	case strings.Contains(cmd.Use, "SERVICE --from WORKLOAD"):
		return append(words, "hello.apps", "--from")
	case strings.Contains(cmd.Use, "--proxy WORKLOAD"):
		return append(words, "-f", "-", "--proxy")
	case strings.Contains(cmd.Use, "WORKLOAD"):
		return words
	case strings.HasSuffix(cmd.Use, " A B"): // two of them, for a bundle files
		if cmd.Parent().Name() == "proxy-config" {
			return append(words, "client-1.apps")
		}
	}
	return nil
}

// TestWorkloadsAreNamedAlike: every command that takes a workload has --namespace, and says
// which names it takes.
func TestWorkloadsAreNamedAlike(t *testing.T) {
	t.Parallel()
	found := 0
	words := regexp.MustCompile(`\b(POD|PROXY|NODE)\b`)
	eachCommand(func(cmd *cobra.Command) {
		if words.MatchString(cmd.Use) {
			t.Errorf("%s names a workload otherwise", cmd.Use)
		}
		line := takesWorkload(cmd)
		if line == nil {
			return
		}
		found++
		if f := cmd.Flags().Lookup("namespace"); f == nil || f.Shorthand != "n" {
			t.Errorf("%s has no --namespace, -n", cmd.CommandPath())
		}
		for _, wrong := range []string{"nosuch/web", "deploy/", "svc/we_b.apps"} {
			var stderr bytes.Buffer
			env := &cli.Env{
				Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Now: time.Now, LookupEnv: clitest.HomeOnly(t.TempDir()),
			}
			if code := Run(t.Context(), env, append(slices.Clone(line), wrong)); code != cli.ExitUsage || !strings.Contains(stderr.String(), kube.WorkloadForms) {
				t.Errorf("%s %s: exit code %d: %s", cmd.CommandPath(), wrong, code, stderr.String())
			}
		}
	})
	if found < 18 {
		t.Errorf("found %d commands that take a workload", found)
	}
}

// TestProxiesOfWorkloads: the commands that ask control planes take the same names of a
// workload.
func TestProxiesOfWorkloads(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	cluster := testkube.Shared(t, "cluster2")
	config := testkube.MergedKubeconfig(t, cluster)
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	pod := func(name string) string {
		return "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: " + name + `, namespace: apps, labels: {app: client}},
spec: {nodeName: nowhere, automountServiceAccountToken: false, serviceAccountName: default, containers: [{name: istio-proxy, image: none}]},
status: {phase: Running, podIP: 10.9.9.9, podIPs: [{ip: 10.9.9.9}]}}`
	}
	cluster.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: apps}}
---
{apiVersion: v1, kind: Service, metadata: {name: client, namespace: apps}, spec: {selector: {app: client}, ports: [{port: 80}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: client, namespace: apps}, spec: {selector: {matchLabels: {app: client}},
template: {metadata: {labels: {app: client}}, spec: {containers: [{name: app, image: none}]}}}}`+pod("client-0")+pod("client-1"))
	// Other tests share the cluster.
	defer cluster.Kubectl(t, "", "delete", "pod/client-0", "pod/client-1", "service/client", "deploy/client", "-n", "apps", "--grace-period=0", "--force")
	admin := holdsWhatWasSent(m).Listener.Addr().String()
	for _, command := range []string{"ps", "xds history", "explain policies", "explain endpoints web.apps --from"} {
		words := strings.Fields(command)
		run := func(named string) (int, string, string) {
			args := append(slices.Clone(words), strings.Fields(named)...)
			args = append(args, "--kubeconfig", config, "--context", "cluster2", "-o", "json")
			if words[0] == "ps" {
				args = append(args, "--admin", admin)
			}
			return m.Run(args...)
		}
		code, want, stderr := run("client-1.apps")
		if want == "" {
			t.Errorf("%s client-1.apps: exit code %d: %s", command, code, stderr)
		}
		for _, named := range []string{
			"client-1", "client-1 -n apps", "pod/client-1.apps", "pod/client-1", "po/client-1 -n apps", "client-1.apps -n shop",
			"deploy/client -n apps", "deployment/client.apps", "svc/client.apps", "svc/client.apps -n shop",
		} {
			got, stdout, stderr := run(named)
			if got != code || stdout != want {
				t.Errorf("%s %s: exit code %d, want %d: %s%s", command, named, got, code, stdout, stderr)
			}
			if (strings.Contains(named, "deploy") || strings.Contains(named, "svc")) && !strings.Contains(stderr, "has 2 pods, this is client-1.apps\n") {
				t.Errorf("%s %s: said is %q", command, named, stderr)
			}
		}
		if _, _, stderr := run("deploy/nosuch -n apps"); !strings.Contains(stderr, "there is no such deployment in namespace apps") {
			t.Errorf("%s deploy/nosuch: said is %q", command, stderr)
		}
	}
}
