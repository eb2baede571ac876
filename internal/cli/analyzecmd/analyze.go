// Package analyzecmd holds the commands that check configuration: analyze and validate.
package analyzecmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

type analyzeOptions struct {
	cli.KubeFlags
	paths, files, remoteDirs   []string
	useKube                    bool
	contexts                   cli.MeshContexts
	clusterID, systemNamespace string
	socketDir                  string
	secretNamespaces           []string
	namespace                  string
	suppress                   []string
	shown, failing             codes.Level
	timeout                    time.Duration
	listCodes                  bool
	output                     output.Format
	flags                      map[mesh.ClusterID]string // by which commands reach the clusters
}

// NewAnalyze returns the command analyze.
func NewAnalyze(env *cli.Env) *cobra.Command {
	o := &analyzeOptions{}
	cmd := &cobra.Command{
		Use:   "analyze [FILE | DIR]...",
		Short: "Find faults between the objects of a mesh",
		Long: `Find faults in the configuration of a mesh: invalid objects, references to objects that
do not exist, conflicts, rules that are never used, selectors that select nothing, pods
without a proxy, differences between clusters. The control plane makes the same checks,
except for pods and for differences.

The mesh is read from files and directories (- is standard input) or, with --context,
from Kubernetes APIs; without both, from the API of the current context. --all-clusters
adds the clusters that the remote secrets of the first cluster name. The command
checks the configuration of each cluster as its own control plane uses it. With
--context, FILE and DIR replace the objects of the same names in the first cluster:
analyze checks the mesh as it would be after you apply the files.

Each finding has a stable code, which docs/analyze.md explains. Codes of istioctl have
the same meaning. The annotation galley.istio.io/analyze-suppress of an object
suppresses findings: its value is codes separated by commas, or *. The exit code is 3
when there are warnings or errors, and 4 when there are none but something was not read.`,
		Example: `  # Check a directory, and a directory with a second cluster
  meshctl analyze ./mesh
  meshctl analyze ./east --remote-dir west=./west

  # Check the clusters of two contexts, and the result of a change
  meshctl analyze --context east,west
  meshctl analyze --all-clusters
  kubectl kustomize . | meshctl analyze --context east,west -

  # Ignore a finding, and fail only on errors
  meshctl analyze ./mesh --suppress "IST0118=Service *.legacy" --failure-threshold Error`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.listCodes {
				return listCodes(env, o.output)
			}
			o.paths = append(args, o.files...)
			return o.run(cmd.Context(), env)
		},
	}
	f := cmd.Flags()
	o.Bind(f)
	o.MeshContextsVar(env, cmd, &o.contexts.Names, "Kubeconfig `context`s of the clusters, as CONTEXT or CLUSTER=CONTEXT; may be repeated")
	o.contexts.BindAll(cmd)
	f.StringSliceVarP(&o.files, "file", "f", nil, "`File` or directory to check, as FILE and DIR; may be repeated")
	cli.Rename(f, "file", "filename")
	f.BoolVar(&o.useKube, "use-kube", false, "With FILE, read the current context as without FILE")
	_ = f.MarkHidden("use-kube") // of istioctl; fails for an unknown flag only
	f.StringArrayVar(&o.remoteDirs, "remote-dir", nil, "Another cluster and its directory, as `CLUSTER=DIR`; may be repeated")
	f.StringVar(&o.clusterID, "cluster-id", "", "`Name` of the first cluster (default the name of the context, else $CLUSTER_ID, else Kubernetes)")
	f.StringVar(&o.systemNamespace, "system-namespace", mesh.DefaultSystemNamespace, "`Namespace` of the control plane and of the ConfigMap istio")
	f.StringSliceVar(&o.secretNamespaces, "credential-namespaces", nil, "`Namespaces` in which all Secrets are read from a Kubernetes API; * for all (default the Secrets that Gateways name)")
	f.StringVarP(&o.namespace, "namespace", "n", "", "Show only the findings about objects of a `namespace`")
	f.BoolP("all-namespaces", "A", true, "Show the findings about objects of all namespaces, as without --namespace")
	cli.Rivals(f, "namespace", "all-namespaces")
	f.BoolP("recursive", "R", true, "Read the folders of a directory, too, which is always done")
	_ = f.MarkHidden("all-namespaces") // fails for an unknown flag only
	_ = f.MarkHidden("recursive")
	f.StringArrayVarP(&o.suppress, "suppress", "S", nil, "Ignore a finding, as `CODE=KIND NAME.NAMESPACE`, in which * stands for any text; may be repeated")
	cli.ChoiceVar(f, &o.shown, "output-threshold", "Lowest level of findings that are shown", codes.Info, codes.Warning, codes.Error)
	cli.ChoiceVar(f, &o.failing, "failure-threshold", "Lowest level of findings for which the exit code is 3", codes.Warning, codes.Error, codes.Info)
	f.BoolVarP(&o.listCodes, "list-analyzers", "L", false, "List the codes of all findings that the command can make, and read no mesh")
	cli.SocketDirVar(f, &o.socketDir)
	cli.DurationVar(f, &o.timeout, "timeout", 30*time.Second, "Time to read all clusters")
	cli.TableVar(f, &o.output)
	return cmd
}

func (o *analyzeOptions) run(ctx context.Context, env *cli.Env) error {
	ignored, err := parseSuppressions(o.suppress)
	if err != nil {
		return err
	}
	clusters, unread, err := o.clusters(ctx, env)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, o.timeout)
	defer stop()
	m, err := load.Read(ctx, load.Config{Clusters: clusters, SystemNamespace: o.systemNamespace, SocketDir: o.socketDir, Now: env.Now, Analysis: true})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the mesh was not read within %s: raise --timeout", o.timeout)
	} else if err != nil {
		return err
	}
	checks := analyze.Options{
		Now: env.Now(), Whole: func(id mesh.ClusterID) bool { return m.Whole[id] }, Flags: func(id mesh.ClusterID) string { return o.flags[id] },
	}
	views, err := m.Views(ctx)
	if err != nil {
		return err
	}
	var secrets []error
	if clusters[0].Config != nil {
		unread = append(unread, o.addLinks(ctx, &checks, clusters)...)
		if secrets, err = o.addSecrets(ctx, &checks, m, views); err != nil {
			return err
		}
	}
	unread = slices.Concat(unread, m.Unread, secrets)
	found := slices.Concat(analyze.OfFiles(m.Files), analyze.OfAPIs(m.APIs), analyze.CheckClusters(views, checks))
	var hidden hiddenFindings
	found = slices.DeleteFunc(analyze.Sort(newLines(clusters).exact(found)), func(f analyze.Finding) bool {
		switch {
		case o.namespace != "" && !isIn(f.Object, o.namespace):
			hidden.elsewhere++
		case ignored.match(&f):
			hidden.ignored++
		case !f.Severity().AtLeast(o.shown):
			hidden.below++
		default:
			return false
		}
		return true
	})
	return report(env, o.output, found, o.failing, looked(m, clusters)+o.secretsRead(clusters)+hidden.String()+o.otherClusters(checks.Unread), unread)
}

// addSecrets adds what is known of Secrets: those of --credential-namespaces or, without the flag, those
// that Gateways name. It returns why some were not read.
func (o *analyzeOptions) addSecrets(ctx context.Context, checks *analyze.Options, m *load.Mesh, views []*registry.Contents) (unread []error, err error) {
	if len(o.secretNamespaces) > 0 {
		checks.SecretsRead = func(namespace string) bool {
			return slices.Contains(o.secretNamespaces, "*") || slices.Contains(o.secretNamespaces, namespace)
		}
		return nil, nil
	}
	secrets, accounts := analyze.CredentialsOf(views)
	credentials, err := m.Credentials(ctx, secrets, accounts)
	if err != nil {
		return nil, err
	}
	checks.Credential, checks.MayNotRead = credentials.Secret, credentials.MayNotRead
	return credentials.Unread, nil
}

// isIn reports whether an object belongs to a namespace, or is this namespace.
func isIn(k snapshot.Key, namespace string) bool {
	return k.Namespace == namespace || k.Kind == snapshot.KindNamespace && k.Name == namespace
}
