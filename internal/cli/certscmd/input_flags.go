package certscmd

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/inspect"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
)

// Output formats in addition to package output.
const (
	formatText        = "text"
	formatJUnit       = "junit"
	formatOpenMetrics = "openmetrics"
)

// inputHelp describes the inputs of commands that read certificates.
const inputHelp = `An INPUT is a file in PEM or DER, a directory with its subdirectories, a Secret in YAML
(cacerts in both layouts, istio-ca-secret, kubernetes.io/tls, remote secrets), a
kubeconfig, Envoy's config dump or the output of meshctl pc secrets -o json, host:port
of a TLS server, or - for standard input. The command recognizes the format. It never
shows private keys and tokens.

With --context the command also reads Secrets of each cluster, and with --all-clusters those of
the clusters that the remote secrets name. The INPUT secret/NAME selects one Secret. Without such
an INPUT, the command reads the CA, the roots and the remote secrets of the namespace.`

// readOptions hold the flags of commands that read certificates.
type readOptions struct {
	clusterFlags
	all        cli.MeshContexts // only All
	inputs     []string
	serverName string
}

func (o *readOptions) bind(env *cli.Env, cmd *cobra.Command) {
	o.clusterFlags.bind(env, cmd)
	o.all.BindAll(cmd)
	cmd.ValidArgsFunction = o.completeInputs(env)
	cmd.Flags().StringVar(&o.serverName, "server-name", "", "Host `name` to send to TLS servers (default their host)")
}

// completeInputs completes secret/ with the Secrets of the clusters, else files.
func (o *readOptions) completeInputs(env *cli.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(o.contexts) == 0 || !strings.HasPrefix(typed, secretPrefix) {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ask := func(ctx context.Context, env *cli.Env) ([]string, error) {
			named := o.clusterFlags
			slices.Sort(named.contexts) // completion parses the flags twice
			named.contexts = slices.Compact(named.contexts)
			clusters, err := named.connect(env)
			if err != nil {
				return nil, err
			}
			var out []string
			for _, c := range clusters {
				names, err := c.Names(ctx)
				if err != nil {
					return nil, err
				}
				for _, name := range names {
					out = append(out, secretPrefix+name)
				}
			}
			return out, nil
		}
		return cli.CompleteNames(env, ask)(cmd, nil, typed)
	}
}

// take checks and keeps the inputs.
func (o *readOptions) take(inputs []string) error {
	o.inputs = inputs
	if len(o.inputs)+len(o.contexts) == 0 && !o.all.All {
		return cli.Usagef("name at least one input: a file, a directory, host:port, - for standard input, or clusters with --context or --all-clusters")
	}
	seen := map[string]bool{}
	for _, in := range o.inputs {
		if seen[in] {
			return cli.Usagef("the input %q is named twice", in)
		}
		seen[in] = true
	}
	return nil
}

// namesSecrets reports whether the inputs name Secrets of the clusters.
func (o *readOptions) namesSecrets() bool {
	return slices.ContainsFunc(o.inputs, func(in string) bool { return strings.HasPrefix(in, secretPrefix) })
}

// load reads the inputs, Secrets first.
func (o *readOptions) load(ctx context.Context, env *cli.Env) (*inspect.Contents, error) {
	if err := o.addClusters(ctx, env); err != nil {
		return nil, err
	}
	documents, rest, err := o.documents(ctx, env, o.inputs)
	if err != nil {
		return nil, err
	}
	loader := &inspect.Loader{Stdin: env.Stdin, ServerName: o.serverName, Documents: documents}
	found, err := loader.Load(ctx, rest)
	if err != nil {
		return nil, err
	}
	env.Hints(found.Empty)
	return found, nil
}

// looked says what was read, for the line about no findings.
func (o *readOptions) looked(env *cli.Env) string {
	var parts, names []string
	for _, in := range o.inputs {
		parts = append(parts, inspect.Describe(in))
	}
	for _, c := range o.ClusterContexts(env, o.contexts) {
		names = append(names, c.Context)
	}
	if len(names) > 0 {
		what := cli.Named("context", names) + ", namespace " + o.namespace
		if !o.namesSecrets() {
			what += " (CA, roots, remote secrets)"
		}
		parts = append(parts, what)
	}
	return strings.Join(parts, ", ")
}

// addClusters adds the clusters of --all-clusters to those of --context.
func (o *readOptions) addClusters(ctx context.Context, env *cli.Env) error {
	if !o.all.All {
		return nil
	}
	o.all.Names = o.contexts
	clusters, err := o.all.ResolveAnswering(ctx, env, &o.KubeFlags, o.namespace)
	if err != nil {
		return err
	}
	o.contexts = nil
	for i := range clusters {
		c := &clusters[i]
		switch {
		case c.Err != nil:
			o.unread = append(o.unread, fmt.Errorf("cluster %s: %w", c.Name(), c.Err))
		case c.Cluster != "" && string(c.Cluster) != c.Context:
			o.contexts = append(o.contexts, string(c.Cluster)+"="+c.Context)
		default:
			o.contexts = append(o.contexts, c.Context)
		}
	}
	if len(o.contexts) == 0 {
		return errors.Join(o.unread...)
	}
	return nil
}

// maxRoots bounds the file of --roots, in bytes.
const maxRoots = 4 << 20

// readRoots reads the certificates of --roots; none when the path is empty.
func readRoots(path string) ([]*x509.Certificate, error) {
	if path == "" {
		return nil, nil
	}
	data, err := files.Read(path, maxRoots)
	if err != nil {
		return nil, err
	}
	roots, err := certs.ParseCerts(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return roots, nil
}
