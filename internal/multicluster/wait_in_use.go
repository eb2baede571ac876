package multicluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/replicas"
)

// replicaPause is the interval between requests to replicas.
const replicaPause = 500 * time.Millisecond

// replicaCluster is the status of a cluster in a replica.
type replicaCluster struct {
	Cluster                           mesh.ClusterID
	State, Credential, NextCredential string
	Cause, Reason                     string
}

// behind returns the reason why a replica does not use the credential yet, or "".
func behind(ctx context.Context, r *replicas.Replica, id mesh.ClusterID, credential string) string {
	var page struct{ Clusters []replicaCluster }
	if err := r.Get(ctx, "/debug/clusters", nil, &page); err != nil {
		if r.Announced == nil {
			return err.Error()
		}
		// Its Lease is slightly older, but sufficient.
		for _, c := range r.Announced.Clusters {
			page.Clusters = append(page.Clusters, replicaCluster{Cluster: c.ID, State: c.State, Credential: c.Credential})
		}
	}
	for _, c := range page.Clusters {
		switch {
		case c.Cluster != id:
		case c.Credential == credential && c.State == "synced":
			return ""
		case c.Credential == credential:
			return strings.TrimSpace(fmt.Sprintf("has it, and is %s %s", c.State, c.Reason))
		default:
			return strings.TrimSpace("uses credential " + c.Credential + " " + c.Reason)
		}
	}
	return "does not know the cluster"
}

// FindReplicas finds the control planes in a namespace of all clusters. Each cluster
// must have one.
func FindReplicas(ctx context.Context, in []*Cluster, namespace string, tokens replicas.Tokens, now func() time.Time) ([]*replicas.Replica, error) {
	var out []*replicas.Replica
	for _, c := range in {
		found, err := replicas.Find(ctx, replicas.Options{
			Access: c.config, Namespace: namespace, Tokens: tokens, Timeout: kube.RequestTimeout, Now: now,
		})
		if err != nil {
			closeAll(out)
			return nil, c.Explain(err)
		}
		out = append(out, found...)
	}
	return out, nil
}

func closeAll(list []*replicas.Replica) {
	for _, r := range list {
		r.Close()
	}
}

// WaitInUse waits until every replica reads the cluster with the credential. It finds
// the replicas again for each attempt, as they come and go. If ctx ends, the error names
// the other replicas.
func WaitInUse(
	ctx context.Context, find func(context.Context) ([]*replicas.Replica, error), id mesh.ClusterID, credential string, say func(string, ...any),
) error {
	said := map[string]string{}
	var waiting []string
	for {
		list, err := find(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil:
			waiting = nil
		}
		for _, r := range list {
			why := behind(ctx, r, id, credential)
			if why != "" {
				waiting = append(waiting, r.Name+" "+why)
			}
			if last, told := said[r.Name]; ctx.Err() == nil && (!told || last != why) {
				said[r.Name] = why
				if why == "" {
					why = "uses the new credential"
				}
				say("replica %s %s", r.Name, why)
			}
		}
		closeAll(list)
		if err == nil && len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not every replica uses credential %s: %s", credential, strings.Join(waiting, "; "))
		case <-time.After(replicaPause):
		}
	}
}
