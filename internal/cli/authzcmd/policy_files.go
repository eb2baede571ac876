package authzcmd

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/explaincmd"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/render"
)

// arePolicies reports whether files and directories have objects in YAML. A dump must be alone.
// The returned Env has the whole standard input.
func arePolicies(env *cli.Env, paths []string) (*cli.Env, bool, error) {
	for i, path := range paths {
		if path == "-" && slices.Contains(paths[:i], path) {
			return env, false, cli.Usagef("--file - is given twice")
		}
		input, isYAML, err := isPolicies(env, path)
		if err != nil {
			return env, false, err
		}
		if env = input; !isYAML && len(paths) > 1 {
			return env, false, cli.Usagef("--file %s: want policies in YAML, as --file is repeated; a dump is given alone", path)
		}
		if !isYAML {
			return env, false, nil
		}
	}
	return env, true, nil
}

// isPolicies reports whether a file, - for standard input, has objects in YAML and no dump.
// The returned Env has the whole standard input.
func isPolicies(env *cli.Env, path string) (*cli.Env, bool, error) {
	if path == "-" {
		in := bufio.NewReader(env.Stdin)
		out := *env
		out.Stdin = in
		return &out, hasObjects(in), nil
	}
	info, err := os.Stat(path)
	if err != nil || info.IsDir() || !info.Mode().IsRegular() {
		return env, err == nil && info.IsDir(), err
	}
	f, err := os.Open(path)
	if err != nil {
		return env, false, err
	}
	defer f.Close()
	return env, hasObjects(bufio.NewReader(f)), nil
}

// objectStart is how objects in braces begin: in YAML, whose keys need no quotes, or in JSON of kubectl.
var objectStart = regexp.MustCompile(`^\{\s*(?:"(?:apiVersion|kind)"|[^"\s])`)

// hasObjects reports whether a text has objects and no dump. It leaves the text unread, except for
// white space at its start.
func hasObjects(r *bufio.Reader) bool {
	first, err := firstByte(r)
	if err != nil || first != '{' {
		return err == nil
	}
	start, _ := r.Peek(64) // the text may be shorter
	return objectStart.Match(start)
}

// firstByte returns the first byte that is not white space, and leaves it unread.
func firstByte(r *bufio.Reader) (byte, error) {
	for {
		b, err := r.ReadByte()
		if err != nil || !unicode.IsSpace(rune(b)) {
			if err == nil {
				err = r.UnreadByte()
			}
			return b, err
		}
	}
}

// policyWorkload is the workload to which policies in YAML apply.
type policyWorkload struct {
	proxy     string // name.namespace in the YAML
	labels    map[string]string
	namespace string
}

func (w *policyWorkload) bind(fs *pflag.FlagSet) {
	fs.StringVar(&w.proxy, "proxy", "", "`Workload` of the policies in YAML, which must be in the YAML")
	cli.MapVar(fs, &w.labels, "labels", "`Labels` of a workload in --namespace to which the policies in YAML apply")
	cli.Rivals(fs, "proxy", "labels")
}

func (w *policyWorkload) given() bool { return w.proxy != "" || len(w.labels) > 0 }

// Names of the workload that stands for one with labels.
const (
	probeName  = "meshctl-authz-check"
	probeLabel = "meshctl.io/authz-check"
	probePort  = 80 // without --port
)

// config computes the filters of the workload.
func (w *policyWorkload) config(ctx context.Context, env *cli.Env, paths []string, request *requestFlags) (*access.Config, error) {
	cluster := load.Cluster{ID: mesh.ClusterID(cmp.Or(env.Getenv("CLUSTER_ID"), "Kubernetes"))}
	var err error
	if cluster.Dirs, cluster.Files, err = cli.ReadPaths(env, paths); err != nil {
		return nil, err
	}
	if w.proxy == "" {
		if w.namespace == "" {
			return nil, cli.Usagef("name the workload of the policies: --proxy with a workload of the YAML, as %s, or --namespace and --labels", explaincmd.OfflineForms)
		}
		probe, err := w.probe(request)
		if err != nil {
			return nil, err
		}
		cluster.Files = append(cluster.Files, load.File{Name: "the workload of --labels", Text: probe})
	}
	m, err := renderMesh(ctx, env, mesh.DefaultSystemNamespace, cluster)
	if err != nil {
		return nil, err
	}
	node, err := explaincmd.RenderedNode(m, cmp.Or(w.proxy, probeName), w.namespace, "")
	if err != nil {
		return nil, fmt.Errorf("%w; without pods in the YAML, such as for a Deployment, give --namespace and --labels instead of --proxy", err)
	}
	return renderedConfig(m, node)
}

// renderMesh reads a mesh, and logs its faults to Stderr.
func renderMesh(ctx context.Context, env *cli.Env, systemNamespace string, clusters ...load.Cluster) (*render.Mesh, error) {
	log := slog.New(slog.NewTextHandler(env.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: explaincmd.WithoutTime}))
	return render.Read(ctx, render.Config{Clusters: clusters, SystemNamespace: systemNamespace, Log: log, Now: env.Now})
}

// renderedConfig returns the filters that serve would send to a proxy.
func renderedConfig(m *render.Mesh, node render.Node) (*access.Config, error) {
	proxy, err := m.Proxy(node)
	if err != nil {
		return nil, err
	}
	dump, err := proxy.ConfigDump()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(dump)
	if err != nil {
		return nil, err
	}
	filters, err := proxyconfig.ReadFilters(bytes.NewReader(text))
	return (*access.Config)(filters), err
}

// probe returns a pod with the labels, and a Service for its port that is newer than all
// others.
func (w *policyWorkload) probe(request *requestFlags) ([]byte, error) {
	port := cmp.Or(request.port, probePort)
	labels := maps.Clone(w.labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[probeLabel] = "true"
	protocol := "http"
	if request.tcp {
		protocol = "tcp"
	}
	account := "default"
	var out bytes.Buffer
	for _, object := range []map[string]any{
		{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": probeName, "namespace": w.namespace, "labels": labels},
			"spec":     map[string]any{"serviceAccountName": account},
			"status":   map[string]any{"phase": "Running", "podIP": "192.0.2.1", "podIPs": []any{map[string]any{"ip": "192.0.2.1"}}},
		}, {
			"apiVersion": "v1", "kind": "Service",
			"metadata": map[string]any{"name": probeName, "namespace": w.namespace, "creationTimestamp": "2999-01-01T00:00:00Z"},
			"spec": map[string]any{
				"clusterIP": "192.0.2.2", "selector": map[string]string{probeLabel: "true"},
				"ports": []any{map[string]any{"name": protocol, "port": port, "targetPort": port}},
			},
		},
	} {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(text)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}
