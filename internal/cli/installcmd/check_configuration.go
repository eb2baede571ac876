package installcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// readTimeout bounds the time to read the objects of the cluster.
const readTimeout = 30 * time.Second

// configuration is what the APIs of clusters have for the checks of analyze.
type configuration struct {
	mesh     *load.Mesh
	views    []*registry.Contents
	checks   analyze.Options
	contexts map[mesh.ClusterID]string
	ids      []mesh.ClusterID // of the clusters, in their order
	unread   []error
}

// readConfiguration reads the objects of clusters.
func (o *checkOptions) readConfiguration(ctx context.Context, env *cli.Env, clusters []*checkedCluster) (*configuration, error) {
	ctx, stop := context.WithTimeout(ctx, readTimeout)
	defer stop()
	config := load.Config{SystemNamespace: o.values.namespace, Now: env.Now, Analysis: true}
	out := &configuration{contexts: map[mesh.ClusterID]string{}}
	var apis []multicluster.API
	for _, c := range clusters {
		config.Clusters = append(config.Clusters, load.Cluster{ID: c.id, Config: c.access.Config})
		out.contexts[c.id], out.ids = c.access.Context, append(out.ids, c.id)
		apis = append(apis, multicluster.API{ID: c.id, Config: c.access.Config})
	}
	linked := make(chan struct{})
	var links map[mesh.ClusterID][]mesh.ClusterID
	var unread []error
	go func() {
		defer close(linked)
		links, unread = multicluster.Links(ctx, apis, o.values.namespace)
	}()
	m, err := load.Read(ctx, config)
	<-linked
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("not all clusters were read within %s", readTimeout)
	} else if err != nil {
		return nil, err
	}
	if out.views, err = m.Views(ctx); err != nil {
		return nil, err
	}
	secrets, accounts := analyze.CredentialsOf(out.views)
	credentials, err := m.Credentials(ctx, secrets, accounts)
	if err != nil {
		return nil, err
	}
	out.mesh = m
	out.unread = slices.Concat(m.Unread, credentials.Unread, unread)
	out.checks = analyze.Options{
		Now: env.Now(), Credential: credentials.Secret, MayNotRead: credentials.MayNotRead,
		Whole: func(mesh.ClusterID) bool { return true },
		Flags: func(id mesh.ClusterID) string { return o.kube.CommandFlags(out.contexts[id]) },
		Links: func(id mesh.ClusterID) []mesh.ClusterID { return links[id] },
	}
	if len(clusters) == 1 {
		out.checks.Unread = links[clusters[0].id]
	}
	return out, nil
}

// check returns the warnings and errors of analyze in and between clusters. The states are those of
// the clusters, in the same order.
func (c *configuration) check(states []clusterState, several bool) []apply.Finding {
	faults := make(map[mesh.ClusterID]func(snapshot.KeySource) (string, bool))
	for i, id := range c.ids {
		faults[id] = states[i].planes.keySetFaults()
	}
	c.checks.KeySet = func(id mesh.ClusterID, source snapshot.KeySource) (fault string, kept bool) {
		if of := faults[id]; of != nil {
			return of(source)
		}
		return "", false
	}
	findings := analyze.Sort(append(analyze.OfAPIs(c.mesh.APIs), analyze.CheckClusters(c.views, c.checks)...))
	var out []apply.Finding
	for i, r := range analyze.Reports(findings) {
		if !r.Level.AtLeast(codes.Warning) && r.Code != codes.NamespaceNotInjected && r.Code != codes.PlaintextToStrict {
			continue
		}
		f := apply.Finding{
			Level: apply.Level(r.Level), Object: cmp.Or(r.Origin, "the mesh"),
			Fault: strings.TrimSpace(string(r.Code) + " " + r.Text()), Hint: cmp.Or(r.Fix, adviceAbout(&findings[i], c.checks.Flags(r.Cluster))),
		}
		if several {
			f.Cluster = c.contexts[r.Cluster]
		}
		out = append(out, f)
	}
	return out
}

// adviceAbout returns what to do about a finding without a command of its own, with the command that opens
// its object.
func adviceAbout(f *analyze.Finding, flags string) string {
	advice := codes.KindOf(f.Code).Fix
	if command := f.Command(flags); command != "" {
		return strings.TrimSuffix(advice, ".") + ": " + command
	}
	return advice
}
