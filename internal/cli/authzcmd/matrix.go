package authzcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
	"github.com/meshctl/meshctl/internal/server/load"
)

// formatDOT is the language of Graphviz.
const formatDOT = "dot"

type authzMatrixOptions struct {
	kube            cli.KubeFlags
	contexts        cli.MeshContexts
	dirs            []string
	namespace       string
	systemNamespace string
	all             bool
	timeout         time.Duration
	output          output.Format
}

func newAuthzMatrixCmd(env *cli.Env) *cobra.Command {
	var o authzMatrixOptions
	cmd := &cobra.Command{
		Use:   "matrix -n NAMESPACE",
		Short: "Show who may call the workloads of a namespace",
		Long: `Show for each port of the workloads of a namespace who may call it, by the policies of a
directory (--config-dir) or a Kubernetes API. The command computes the filters that serve
would send to the workloads, and needs no running control plane or Envoy. With several
clusters, it shows the workloads of each by the policies of the same cluster.

A call is allowed, denied, or depends on parts of the request, such as its path or its
token. Callers are the service accounts of all workloads, the other accounts of their
namespaces (NAMESPACE/*), other identities, and clients that send plaintext. The table
and the graph omit accounts with the same result as the other accounts of their
namespace, and namespaces with the same result as other identities; --all and JSON show
them, too.`,
		Example: `  # By the policies of the cluster
  meshctl authz matrix -n apps

  # In all clusters of the mesh
  meshctl authz matrix -n apps --context east --all-clusters

  # By manifests, as a graph
  meshctl authz matrix -n apps --config-dir mesh -o dot | dot -Tsvg > apps.svg`,
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&o.dirs, "config-dir", nil, "`Directory` of YAML instead of a Kubernetes API; may be repeated")
	o.contexts.Bind(env, cmd, &o.kube, "")
	o.kube.Bind(fs)
	o.kube.NamespaceVar(env, cmd, &o.namespace, "namespace", "n", "", "`Namespace` of the workloads (required)")
	fs.StringVar(&o.systemNamespace, "system-namespace", mesh.DefaultSystemNamespace, "`Namespace` of the control plane and of the ConfigMap istio")
	fs.BoolVar(&o.all, "all", false, "Show all callers")
	cli.DurationVar(fs, &o.timeout, "timeout", 30*time.Second, "Time to read the cluster")
	cli.TableVar(fs, &o.output, formatDOT)
	return cmd
}

// matrix is the result of the command.
type matrix struct {
	Namespace string         `json:"namespace"`
	Targets   []matrixTarget `json:"targets"`

	several bool // clusters
}

// matrixTarget is a port of a workload.
type matrixTarget struct {
	Cluster  string        `json:"cluster,omitzero"` // if there are several
	Workload string        `json:"workload"`
	Port     uint32        `json:"port"`
	Callers  []access.Cell `json:"callers"`
}

func (o *authzMatrixOptions) run(ctx context.Context, env *cli.Env) error {
	if o.namespace == "" {
		return cli.Usagef("name the namespace of the workloads with --namespace")
	}
	clusters, unread, err := o.clusters(ctx, env)
	if err != nil {
		return err
	}
	result := &matrix{Namespace: o.namespace, several: len(clusters)+len(unread) > 1}
	var read []string
	without := 0
	for i := range clusters {
		own := string(clusters[i].ID)
		bare, err := o.addCluster(ctx, env, result, own, clusters[i:], clusters[:i])
		switch {
		case err == nil:
			read, without = append(read, own), without+bare
		case len(clusters) == 1 || ctx.Err() != nil:
			return err
		default:
			unread = append(unread, fmt.Errorf("cluster %s: %w", own, err))
		}
	}
	if without > 0 {
		env.Notef("Pods of %s without a proxy, which no policy protects: %d", o.namespace, without)
	}
	if len(result.Targets) == 0 {
		return errors.Join(append(unread, fmt.Errorf("no workload of namespace %s has a proxy in %s", o.namespace, cli.Named("cluster", read)))...)
	}
	if err := o.show(env, result); err != nil {
		return err
	}
	return cli.Incomplete(unread...)
}

// show prints the result.
func (o *authzMatrixOptions) show(env *cli.Env, result *matrix) error {
	if !o.output.OfTable() && o.output != formatDOT {
		return output.Write(env.Stdout, o.output, result)
	}
	if !o.all {
		for i := range result.Targets {
			result.Targets[i].Callers = access.Summary(result.Targets[i].Callers)
		}
	}
	if o.output == formatDOT {
		return env.WriteOut([]byte(result.dot()))
	}
	return cli.WriteTable(env, o.output, result.table())
}

// clusters returns the directories, or the APIs of the contexts, and why some contexts are not read.
func (o *authzMatrixOptions) clusters(ctx context.Context, env *cli.Env) (out []load.Cluster, unread []error, err error) {
	id := mesh.ClusterID(cmp.Or(env.Getenv("CLUSTER_ID"), "Kubernetes"))
	if len(o.dirs) > 0 {
		return []load.Cluster{{ID: id, Dirs: o.dirs}}, nil, nil
	}
	contexts, err := o.contexts.ResolveAnswering(ctx, env, &o.kube, o.systemNamespace)
	if err != nil {
		return nil, nil, err
	}
	for i := range contexts {
		c := &contexts[i]
		found, err := (*kube.Access)(nil), c.Err
		if err == nil {
			found, err = kube.Load(o.kube.Options(env, c.Context))
		}
		switch {
		case errors.Is(err, kube.ErrNoAccess):
			return nil, nil, fmt.Errorf("%w, or name directories with --config-dir", err)
		case err != nil && len(contexts) == 1:
			return nil, nil, err
		case err != nil:
			unread = append(unread, fmt.Errorf("cluster %s: %w", c.Name(), err))
			continue
		case len(contexts) > 1:
			id = cmp.Or(c.Cluster, mesh.ClusterID(found.Context))
		}
		out = append(out, load.Cluster{ID: id, Config: found.Config})
	}
	return out, unread, nil
}

// addCluster adds the workloads of the first cluster, by its policies, and returns the number of pods
// without a proxy.
func (o *authzMatrixOptions) addCluster(ctx context.Context, env *cli.Env, to *matrix, own string, first, others []load.Cluster) (without int, err error) {
	ctx, stop := context.WithTimeout(ctx, o.timeout)
	defer stop()
	m, err := renderMesh(ctx, env, o.systemNamespace, slices.Concat(first, others)...)
	if errors.Is(err, context.DeadlineExceeded) {
		return 0, fmt.Errorf("the cluster was not read within %s: raise --timeout", o.timeout)
	} else if err != nil {
		return 0, err
	}
	workloads, without := m.Workloads(mesh.ClusterID(own), o.namespace)
	callers := access.Callers(m.Identities(), m.TrustDomain())
	for _, w := range workloads {
		config, err := renderedConfig(m, w.Node)
		if err != nil {
			return 0, err
		}
		for _, port := range config.Ports() {
			row, err := access.Row(config, port, callers)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", w.Name, err)
			}
			target := matrixTarget{Workload: w.Name, Port: port, Callers: row}
			if to.several {
				target.Cluster = own
			}
			to.Targets = append(to.Targets, target)
		}
	}
	return without, nil
}

func (m *matrix) table() *output.Table {
	t := &output.Table{Header: []string{"WORKLOAD", "PORT", "CALLER", "CALLS", "RULES", "WHY"}, Name: "WORKLOAD"}
	if m.several {
		t.Header = slices.Insert(t.Header, 0, "CLUSTER")
	}
	for _, target := range m.Targets {
		for _, cell := range target.Callers {
			row := []string{
				target.Workload, strconv.FormatUint(uint64(target.Port), 10), cell.Caller, cell.Calls, cli.OrDash(shortRules(cell.Rules)), cell.Why,
			}
			if m.several {
				row = slices.Insert(row, 0, target.Cluster)
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// shortRules returns the names of rules for tables.
func shortRules(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = shortRule(name)
	}
	return strings.Join(out, ", ")
}

// shortRule returns policy.namespace[rule], or the name of a rule that is of no policy.
func shortRule(name string) string {
	if p, ok := access.ParsePolicy(name); ok {
		return p.Name + "." + p.Namespace + "[" + strconv.Itoa(p.Rule) + "]"
	}
	return name
}

// dot returns a graph with an edge for each caller that is not always denied.
func (m *matrix) dot() string {
	var out strings.Builder
	fmt.Fprintf(&out, "digraph %s {\n  rankdir=LR;\n", strconv.Quote(m.Namespace))
	for _, target := range m.Targets {
		name := target.Workload
		if target.Cluster != "" {
			name = target.Cluster + "/" + name
		}
		to := strconv.Quote(name + ":" + strconv.FormatUint(uint64(target.Port), 10))
		fmt.Fprintf(&out, "  %s [shape=box];\n", to)
		for _, cell := range target.Callers {
			style := ""
			switch cell.Calls {
			case "deny":
				continue
			case "depends":
				style = ", style=dashed"
			}
			fmt.Fprintf(&out, "  %s -> %s [label=%s%s];\n", strconv.Quote(cell.Caller), to, strconv.Quote(shortRules(cell.Rules)), style)
		}
	}
	out.WriteString("}\n")
	return out.String()
}
