package installcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// wrongClusters returns the faults of reading clusters, as the control planes in the cluster of a context
// report them.
func (p *controlPlanes) wrongClusters(own string) []apply.Finding {
	var out []apply.Finding
	for i := range p.clusters {
		for _, f := range faultsOfPage(&p.clusters[i].Value, own) {
			if !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
	}
	return out
}

// faultsOfPage returns the faults that one control plane reports.
func faultsOfPage(page *clusters.Page, own string) []apply.Finding {
	var here mesh.ClusterID
	for i := range page.Clusters {
		if page.Clusters[i].Own {
			here = page.Clusters[i].Cluster
		}
	}
	var out []apply.Finding
	for i := range page.Clusters {
		out = append(out, faultsOfCluster(&page.Clusters[i].Status, here)...)
	}
	for _, p := range page.Problems {
		f := apply.Finding{Level: apply.Error, Object: p.Origin, Fault: p.Reason, Hint: "meshctl remote-secret check"}
		if p.Cluster != "" {
			f.Object += ", cluster " + string(p.Cluster)
		}
		out = append(out, f)
	}
	for i := range out {
		out[i].Hint = withContexts(out[i].Hint, map[mesh.ClusterID]string{here: own})
	}
	return out
}

// faultsOfCluster returns the faults of reading a cluster, the worst first.
func faultsOfCluster(c *clusters.Status, here mesh.ClusterID) []apply.Finding {
	object := "cluster " + string(c.Cluster)
	if c.OriginKind == clusters.OriginSecret {
		object = ofSecret(c.Cluster, c.Origin)
	}
	faults := slices.Clone(c.Faults)
	if len(faults) == 0 && c.State != clusters.Synced {
		faults = append(faults, clusters.Fault{Reason: "the control plane has not read all of it"})
	}
	var out []apply.Finding
	for _, fault := range faults {
		f := apply.Finding{Level: apply.Error, Object: object, Fault: fault.Reason, Hint: fault.Fix}
		if c.State != clusters.Synced {
			f.Fault = "is " + string(c.State) + ": " + fault.Reason
		} else if fault.Cause == string(kube.CauseForbidden) {
			f.Level = apply.Warning
		}
		out = append(out, f)
	}
	if c.CredentialProblem != "" && !c.CredentialExpired {
		f := apply.Finding{Level: apply.Warning, Object: object, Fault: c.CredentialProblem}
		if c.OriginKind == clusters.OriginSecret {
			f.Hint = (&clusters.Repair{Cluster: c.Cluster, Own: here, Secret: c.Origin}).Command(clusters.CauseExpired)
		}
		out = append(out, f)
	}
	return out
}

// contextsOf returns the contexts of clusters, by the names of remote secrets and by those that the control
// planes of the clusters use.
func contextsOf(checked []*checkedCluster, states []clusterState) map[mesh.ClusterID]string {
	out := map[mesh.ClusterID]string{}
	for i, c := range checked {
		out[c.id] = c.access.Context
		for _, r := range states[i].planes.replicas {
			if r.Identity.Cluster != "" {
				out[r.Identity.Cluster] = c.access.Context
			}
		}
	}
	return out
}

// withContexts returns a command of a control plane with the contexts of clusters.
func withContexts(command string, contexts map[mesh.ClusterID]string) string {
	words := strings.Split(command, " ")
	for i, word := range words {
		if id, found := strings.CutPrefix(word, clusters.ContextOf); found && contexts[mesh.ClusterID(id)] != "" {
			words[i] = contexts[mesh.ClusterID(id)]
		}
	}
	return strings.Join(words, " ")
}

// ofSecret names a cluster with its remote secret.
func ofSecret(id mesh.ClusterID, secret string) string {
	return "cluster " + string(id) + ", Secret " + secret
}

// checkCredentials tries the credentials with which the control planes of the checked clusters read each
// other. A control plane may notice a lost right or a refused token only when it connects again.
func (o *checkOptions) checkCredentials(ctx context.Context, env *cli.Env, checked []*checkedCluster) (st clusterState) {
	for _, c := range checked {
		remote, err := o.tryable(ctx, c, checked)
		if err != nil {
			st.notes = append(st.notes, fmt.Sprintf("not read: the remote secrets of %s: %v", c.Name, err))
			continue
		}
		options := remotesecret.Options{Now: env.Now()}
		var faults []remotesecret.Finding
		for i := range remote {
			faults = append(faults, remotesecret.Check(&remote[i], options)...)
		}
		tried, untried := multicluster.TryCredentials(ctx, remote, options, faults)
		for _, err := range untried {
			st.notes = append(st.notes, "not read: "+err.Error())
		}
		for i := range remote {
			r := &remote[i]
			for _, f := range tried {
				if f.Place != r.Place || f.Cluster != r.ID {
					continue
				}
				cause := string(kube.CauseForbidden)
				if f.Code == remotesecret.CredentialRefused {
					cause = string(kube.CauseUnauthorized)
				}
				repair := clusters.Repair{Cluster: r.ID, Secret: r.Secret, Namespaces: r.Namespaces, CredentialNamespaces: r.CredentialNamespaces}
				st.found = append(st.found, apply.Finding{
					Level: apply.Error, Cluster: c.access.Context, Object: ofSecret(r.ID, r.Secret), Fault: f.Reason,
					Hint: withContexts(repair.Command(cause), map[mesh.ClusterID]string{"": c.access.Context}),
				})
			}
		}
	}
	return st
}

// tryable returns the remote secrets of a cluster for others that are checked.
func (o *checkOptions) tryable(ctx context.Context, c *checkedCluster, checked []*checkedCluster) ([]remotesecret.Cluster, error) {
	connected, err := multicluster.Connect(c.access)
	if err != nil {
		return nil, err
	}
	remote, err := connected.RemoteClusters(ctx, o.values.namespace)
	return slices.DeleteFunc(remote, func(r remotesecret.Cluster) bool {
		return !slices.ContainsFunc(checked, func(other *checkedCluster) bool { return other != c && other.id == r.ID })
	}), err
}
