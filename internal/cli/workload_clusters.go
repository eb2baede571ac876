package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/meshctl/meshctl/internal/kube"
)

// ClusterPods are the running pods of a workload in one cluster.
type ClusterPods struct {
	Of        string // the workload, for messages
	Access    *kube.Access
	Namespace string
	Names     []string // at least one, ready pods first
}

// FindPods looks for pods in one cluster.
type FindPods func(ctx context.Context, finder *kube.PodFinder, access *kube.Access) (*ClusterPods, error)

// WorkloadPods finds the pods of a workload.
func WorkloadPods(named, namespace string) FindPods {
	return func(ctx context.Context, finder *kube.PodFinder, access *kube.Access) (*ClusterPods, error) {
		ref, err := kube.ParseWorkload(named, cmp.Or(namespace, access.Namespace, "default"))
		if err != nil {
			return nil, Usagef("%w", err)
		}
		pods, err := finder.Pods(ctx, ref)
		return &ClusterPods{ref.String(), access, ref.Namespace, pods}, err
	}
}

// PodsInClusters looks for the pods of a workload in all clusters at the same time. It returns those of
// each cluster that has some, in the order of the clusters, and warns of the clusters that it could
// not ask. If none has pods, the error has the reason of each cluster.
func PodsInClusters(ctx context.Context, env *Env, k *KubeFlags, clusters []MeshContext, of string, find FindPods) ([]*ClusterPods, error) {
	results := make([]*ClusterPods, len(clusters))
	errs := make([]error, len(clusters))
	var asked sync.WaitGroup
	for i := range clusters {
		asked.Go(func() { results[i], errs[i] = podsIn(ctx, env, k, &clusters[i], len(clusters) > 1, find) })
	}
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var found []*ClusterPods
	var reasons, unread []string
	for i, err := range errs {
		coded, isCoded := errors.AsType[*codedError](err)
		_, isAbsent := errors.AsType[*kube.AbsentError](err)
		switch {
		case err == nil:
			found = append(found, results[i])
			continue
		case len(clusters) == 1 || isCoded && coded.code == ExitUsage:
			return nil, err
		case !isAbsent:
			unread = append(unread, fmt.Sprintf("cluster %s is not read: %v", clusters[i].Name(), err))
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", clusters[i].Name(), err))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s is not found in %d clusters: %s", of, len(clusters), strings.Join(reasons, "; "))
	}
	for _, line := range unread {
		env.Warnf("%s", line)
	}
	return found, nil
}

func podsIn(ctx context.Context, env *Env, k *KubeFlags, c *MeshContext, certain bool, find FindPods) (*ClusterPods, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	access, err := kube.Load(k.Options(env, c.Context))
	if err != nil {
		return nil, err
	}
	finder, err := kube.NewPodFinder(access.Config)
	if err != nil {
		return nil, err
	}
	defer finder.Close()
	finder.Certain = certain
	return find(ctx, finder, access)
}

// OneCluster returns the pods of the only cluster that has some. fix says how to name one of several.
func OneCluster(found []*ClusterPods, fix string) (*ClusterPods, error) {
	if len(found) == 1 {
		return found[0], nil
	}
	contexts := make([]string, len(found))
	for i, f := range found {
		contexts[i] = f.Access.Context
	}
	return nil, Usagef("%s is in several clusters, of the contexts %s: %s", found[0].Of, strings.Join(contexts, ", "), fix)
}
