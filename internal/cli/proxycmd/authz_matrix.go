package proxycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"github.com/meshctl/meshctl/internal/server/render"
)

// formatDOT is the language of Graphviz.
const formatDOT = "dot"

type authzMatrixOptions struct {
	kube            cli.KubeFlags
	context         string
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
would send to the workloads, and needs no running control plane or Envoy.

A call is allowed, denied, or depends on parts of the request, such as its path or its
token. Callers are the service accounts of all workloads, the other accounts of their
namespaces (NAMESPACE/*), other identities, and clients that send plaintext. The table
and the graph omit accounts with the same result as the other accounts of their
namespace, and namespaces with the same result as other identities; --all and JSON show
them, too.`,
		Example: `  # By the policies of the cluster
  meshctl authz matrix -n apps

  # By manifests, as a graph
  meshctl authz matrix -n apps --config-dir mesh -o dot | dot -Tsvg > apps.svg`,
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&o.dirs, "config-dir", nil, "`Directory` of YAML instead of a Kubernetes API; may be repeated")
	o.kube.ContextVar(env, cmd, &o.context, "context", "Kubeconfig `context` of the cluster (default the current one)")
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
}

// matrixTarget is a port of a workload.
type matrixTarget struct {
	Workload string        `json:"workload"`
	Port     uint32        `json:"port"`
	Callers  []access.Cell `json:"callers"`
}

func (o *authzMatrixOptions) run(ctx context.Context, env *cli.Env) error {
	if o.namespace == "" {
		return cli.Usagef("name the namespace of the workloads with --namespace")
	}
	m, err := o.read(ctx, env)
	if err != nil {
		return err
	}
	result, err := o.matrix(env, m)
	switch {
	case err != nil:
		return err
	case !o.output.OfTable() && o.output != formatDOT:
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

// read reads the mesh of the directories or of the Kubernetes API.
func (o *authzMatrixOptions) read(ctx context.Context, env *cli.Env) (*render.Mesh, error) {
	cluster := load.Cluster{ID: mesh.ClusterID(cmp.Or(env.Getenv("CLUSTER_ID"), "Kubernetes")), Dirs: o.dirs}
	if len(o.dirs) == 0 {
		found, err := kube.Load(o.kube.Options(env, o.context))
		if errors.Is(err, kube.ErrNoAccess) {
			return nil, fmt.Errorf("%w, or name directories with --config-dir", err)
		} else if err != nil {
			return nil, err
		}
		cluster.Config = found.Config
	}
	ctx, stop := context.WithTimeout(ctx, o.timeout)
	defer stop()
	m, err := renderMesh(ctx, env, o.systemNamespace, cluster)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("the cluster was not read within %s: raise --timeout", o.timeout)
	}
	return m, err
}

func (o *authzMatrixOptions) matrix(env *cli.Env, m *render.Mesh) (*matrix, error) {
	workloads, without := m.Workloads(o.namespace)
	if without > 0 {
		env.Notef("Pods of %s without a proxy, which no policy protects: %d", o.namespace, without)
	}
	if len(workloads) == 0 {
		return nil, fmt.Errorf("no workload of namespace %s has a proxy", o.namespace)
	}
	callers := access.Callers(m.Identities(), m.TrustDomain())
	out := &matrix{Namespace: o.namespace}
	for _, w := range workloads {
		config, err := renderedConfig(m, w.Node)
		if err != nil {
			return nil, err
		}
		for _, port := range config.Ports() {
			row, err := access.Row(config, port, callers)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.Name, err)
			}
			out.Targets = append(out.Targets, matrixTarget{Workload: w.Name, Port: port, Callers: row})
		}
	}
	return out, nil
}

func (m *matrix) table() *output.Table {
	t := &output.Table{Header: []string{"WORKLOAD", "PORT", "CALLER", "CALLS", "RULES", "WHY"}, Name: "WORKLOAD"}
	for _, target := range m.Targets {
		for _, cell := range target.Callers {
			t.Rows = append(t.Rows, []string{
				target.Workload, strconv.FormatUint(uint64(target.Port), 10), cell.Caller, cell.Calls, cli.OrDash(shortRules(cell.Rules)), cell.Why,
			})
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
		to := strconv.Quote(target.Workload + ":" + strconv.FormatUint(uint64(target.Port), 10))
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
