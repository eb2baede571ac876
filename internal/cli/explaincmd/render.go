package explaincmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/render"
)

// formatConfigDump is the form of the admin interface of Envoy.
const formatConfigDump = "configdump"

type renderOptions struct {
	cfg       render.Config
	paths     []string
	clusterID string
	proxies   []string
	namespace string // of proxies without one
	cluster   string
	all       bool
	assert    string
	output    output.Format
}

// NewRender returns the command render.
func NewRender(env *cli.Env) *cobra.Command {
	var o renderOptions
	cmd := &cobra.Command{
		Use:   "render (--proxy WORKLOAD | --all | --assert FILE) [-f FILE|DIR]...",
		Short: "Show what serve would send to a proxy, offline",
		Long: `Show what meshctl serve would send to a proxy, from YAML and without a cluster or a
running control plane. The command processes the objects as serve does, and prints the
warnings of serve to standard error. Objects in files replace objects of the same names
in directories.

WORKLOAD is a pod or WorkloadEntry of the YAML, as name or name.namespace, the owner of
a pod, as deploy/name, or a file with an xDS node, which may have any metadata. --all
shows each workload that has a proxy: pods with the label security.istio.io/tlsMode=istio
or sidecar.istio.io/inject=true, pods that a Gateway selects, and WorkloadEntries with a
service account.

The format table shows the tables of proxy-config, or for several proxies the number of
their resources. JSON and YAML show all resources. The format configdump is for meshctl
proxy-config --file. Private keys are never shown.

--assert reads a list of expectations. Each expectation has a proxy, the type and the
name of a resource, a JSONPath in the resource, and either the value there or absent:
true. The exit code is 3 when an expectation fails.`,
		Example: `  # Show what web gets
  meshctl render --proxy web-1.apps -f mesh
  meshctl render --proxy web-1.apps -f mesh -o configdump | meshctl pc routes -f -

  # Show what web gets in a mesh of two clusters, with the control plane of cluster1
  meshctl render --proxy web-1.apps -f cluster1=west -f cluster2=east -o yaml

  # Show what a chart would change
  helm template shop | meshctl render --proxy web-1.apps -f mesh -f -

  # Check a change before it is merged
  meshctl render --assert expectations.yaml -f mesh`,
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.paths, "file", "f", []string{"."}, "`File` or directory of YAML, - for standard input, or CLUSTER=PATH for further clusters; may be repeated")
	cli.Alias(f, "file", "filename")
	f.StringArrayVar(&o.proxies, "proxy", nil, "A `workload` of the YAML, or a file with its node; may be repeated")
	f.StringVarP(&o.namespace, "namespace", "n", "", "`Namespace` of a workload whose name has none")
	f.BoolVar(&o.all, "all", false, "All proxies of the YAML")
	f.StringVar(&o.assert, "assert", "", "`File` with expectations, - for standard input")
	f.StringVar(&o.cluster, "cluster", "", "The `cluster` of the proxy, if several clusters have one of that name")
	f.StringVar(&o.clusterID, "cluster-id", "", "`Name` of the cluster of a path without CLUSTER= (default $CLUSTER_ID, else Kubernetes)")
	f.StringVar((*string)(&o.cfg.Network), "network", "", "`Network` of the first cluster if its system namespace has no label topology.istio.io/network")
	f.StringVar(&o.cfg.TrustDomain, "trust-domain", "", "SPIFFE trust `domain` (default the value in the ConfigMap istio, else cluster.local)")
	f.StringVar(&o.cfg.SystemNamespace, "system-namespace", mesh.DefaultSystemNamespace, "`Namespace` of the control plane and of the ConfigMap istio")
	cli.SocketDirVar(f, &o.cfg.SocketDir)
	cli.TextVar(f, &o.output, formatConfigDump)
	return cmd
}

func (o *renderOptions) run(ctx context.Context, env *cli.Env) error {
	if err := o.check(env); err != nil {
		return err
	}
	o.cfg.Log = slog.New(slog.NewTextHandler(env.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: WithoutTime}))
	o.cfg.Now = env.Now
	m, err := render.Read(ctx, o.cfg)
	if err != nil {
		return err
	}
	nodes, err := o.nodes(m)
	if err != nil {
		return err
	}
	if o.assert != "" {
		return o.checkExpectations(env, m, nodes)
	}
	var found []*render.Proxy
	for _, n := range nodes {
		p, err := m.Proxy(n)
		if err != nil {
			return err
		}
		found = append(found, p)
	}
	switch {
	case o.output == formatConfigDump && len(found) == 1:
		dump, err := found[0].ConfigDump()
		if err != nil {
			return err
		}
		return output.Write(env.Stdout, output.FormatJSON, dump)
	case o.output == formatConfigDump:
		return cli.Usagef("--output %s is for one proxy, and there are %d: name one with --proxy", formatConfigDump, len(found))
	case o.output.OfTable() && len(found) == 1 && !o.all:
		return writeProxy(env, found[0])
	}
	return o.write(env, found)
}

// check checks the flags and reads the files.
func (o *renderOptions) check(env *cli.Env) error {
	switch {
	case o.all && len(o.proxies) > 0:
		return cli.Usagef("--all and --proxy exclude each other")
	case o.all && o.assert != "":
		return cli.Usagef("--all and --assert exclude each other: the file names the proxies")
	case !o.all && len(o.proxies) == 0 && o.assert == "":
		return cli.Usagef("name a workload with --proxy, as %s, or give --all or --assert FILE", OfflineForms)
	case !mesh.IsDNSLabel(o.cfg.SystemNamespace):
		return cli.Usagef("--system-namespace %q is not a DNS label", o.cfg.SystemNamespace)
	case o.cfg.TrustDomain != "" && !mesh.IsTrustDomain(o.cfg.TrustDomain):
		return cli.Usagef("--trust-domain %q is not a SPIFFE trust domain", o.cfg.TrustDomain)
	}
	own := cmp.Or(o.clusterID, env.Getenv("CLUSTER_ID"), "Kubernetes")
	for _, v := range o.paths {
		cluster, path, named := strings.Cut(v, "=")
		if !named {
			cluster, path = own, v
		}
		id := mesh.ClusterID(cluster)
		switch {
		case path == "":
			return cli.Usagef("--file %q: want PATH or CLUSTER=PATH", v)
		case !id.Valid():
			return cli.Usagef("--file %q: cluster id %q: want letters, digits, '.', '-' and '_', at most 63", v, cluster)
		}
		at := slices.IndexFunc(o.cfg.Clusters, func(c load.Cluster) bool { return c.ID == id })
		if at < 0 {
			at = len(o.cfg.Clusters)
			o.cfg.Clusters = append(o.cfg.Clusters, load.Cluster{ID: id})
		}
		dirs, read, err := cli.ReadPaths(env, []string{path})
		if err != nil {
			return err
		}
		c := &o.cfg.Clusters[at]
		c.Dirs, c.Files = append(c.Dirs, dirs...), append(c.Files, read...)
	}
	return nil
}

// nodes returns the nodes that the flags name.
func (o *renderOptions) nodes(m *render.Mesh) ([]render.Node, error) {
	if o.all {
		nodes := m.Nodes()
		if len(nodes) == 0 {
			return nil, errors.New("no workload has a proxy: pods need the label security.istio.io/tlsMode=istio or sidecar.istio.io/inject=true")
		}
		return nodes, nil
	}
	var out []render.Node
	for _, name := range o.proxies {
		n, err := o.node(m, name)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// maxNodeFile bounds a file with a node, in bytes.
const maxNodeFile = 1 << 20

// node returns the node of a workload, or of a file.
func (o *renderOptions) node(m *render.Mesh, named string) (render.Node, error) {
	kind, _, isPath := strings.Cut(named, string(filepath.Separator))
	if isPath && kind != "" && !strings.HasPrefix(kind, ".") { // or kind/name
		_, err := os.Stat(named)
		isPath = err == nil
	}
	if !isPath && !slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(named)) {
		return RenderedNode(m, named, o.namespace, mesh.ClusterID(o.cluster))
	}
	data, err := files.Read(named, maxNodeFile)
	if err != nil {
		return nil, err
	}
	n, err := render.ParseNode(data)
	if err != nil {
		return nil, fmt.Errorf("node file %s: %w", named, err)
	}
	return n, nil
}

// OfflineForms lists the forms of the name of a workload in files. Files need not have the
// object that owns a pod, so that its kind does not matter.
const OfflineForms = "POD, POD.NAMESPACE or deploy/NAME"

// RenderedNode returns the node of a workload in files.
func RenderedNode(m *render.Mesh, named, namespace string, cluster mesh.ClusterID) (render.Node, error) {
	if _, _, has := strings.Cut(named, "/"); !has {
		if !strings.Contains(named, ".") && namespace != "" {
			named += "." + namespace
		}
		return m.Node(named, cluster)
	}
	ref, err := kube.ParseWorkload(named, cmp.Or(namespace, "default"))
	switch {
	case err != nil:
		return nil, cli.Usagef("%w", err)
	case ref.IsPod():
		return m.Node(ref.Name+"."+ref.Namespace, cluster)
	case !ref.OwnsPods():
		return nil, cli.Usagef("%s: name a workload of files as %s", named, OfflineForms)
	}
	return m.NodeOfOwner(ref.Name, ref.Namespace, cluster)
}

// writeProxy prints the tables of a proxy, with an empty line between them.
func writeProxy(env *cli.Env, p *render.Proxy) error {
	dump, err := p.ConfigDump()
	if err != nil {
		return err
	}
	text, err := json.Marshal(dump)
	if err != nil {
		return err
	}
	overview, err := proxyconfig.ReadOverview(bytes.NewReader(text), proxyconfig.OverviewFilter{})
	if err != nil {
		return err
	}
	between := ""
	for _, part := range overview.Parts(true, env.Now()) {
		if len(part.Table.Rows) == 0 || part.Title == "BOOTSTRAP" {
			continue
		}
		if err := env.WriteOut([]byte(between)); err != nil {
			return err
		}
		if err := part.Table.Write(env.Stdout); err != nil {
			return err
		}
		between = "\n"
	}
	return nil
}

// write prints the resources of proxies, as a list unless one proxy is named, or a table
// with their number.
func (o *renderOptions) write(env *cli.Env, proxies []*render.Proxy) error {
	var all []*render.Resources
	table := &output.Table{Header: []string{"PROXY", "CLUSTER", "CLUSTERS", "ENDPOINTS", "LISTENERS", "ROUTES", "SECRETS"}}
	for _, p := range proxies {
		r, err := p.Resources()
		if err != nil {
			return err
		}
		row := []string{p.Name, cli.OrDash(string(p.Cluster))}
		for _, list := range [][]render.Resource{r.Clusters, r.Endpoints, r.Listeners, r.Routes, r.Secrets} {
			row = append(row, strconv.Itoa(len(list)))
		}
		all, table.Rows = append(all, r), append(table.Rows, row)
	}
	if len(all) == 1 && !o.all {
		return cli.WriteResult(env, o.output, all[0], table)
	}
	return cli.WriteResult(env, o.output, all, table)
}

// maxExpectationFile bounds a file with expectations, in bytes.
const maxExpectationFile = 8 << 20

// checkExpectations prints each expectation that fails.
func (o *renderOptions) checkExpectations(env *cli.Env, m *render.Mesh, named []render.Node) error {
	file, data, err := cli.ReadInput(env, o.assert, maxExpectationFile)
	if err != nil {
		return err
	}
	list, err := render.ReadExpectations(data)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	failed, err := m.Check(list, named, func(e *render.Expectation, difference string) {
		fmt.Fprintf(output.Text(env.Stdout), "%s:%d: %s: %s\n", file, e.Line, e, strings.TrimRight(difference, "\n"))
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", file, err)
	case failed > 0:
		return cli.Findingsf("%d of %s failed", failed, output.Plural(len(list), "expectation"))
	}
	env.Notef("%s met (%s)", output.Plural(len(list), "expectation"), file)
	return nil
}

// WithoutTime removes the time from the lines of a log.
func WithoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
