package multicluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/replicas"
)

// errUntold says that control planes do not tell of all clusters.
var errUntold = errors.New("no control plane tells of its clusters")

// KnownClusters are the clusters that the control planes in a namespace of the
// cluster know, sorted: by their Leases, by its remote secrets, which may be newer,
// and by what is set already. With an error there may be others.
func (c *Cluster) KnownClusters(ctx context.Context, namespace string, now time.Time) ([]mesh.ClusterID, error) {
	var known []mesh.ClusterID
	told, err := replicas.Announced(ctx, c.config, namespace, now)
	if err == nil && len(told) == 0 {
		err = fmt.Errorf("%w: namespace %s has no Lease of one", errUntold, namespace)
	}
	for _, a := range told {
		if a.Cluster != "" {
			known = append(known, a.Cluster)
		}
		for _, r := range a.Clusters {
			known = append(known, r.ID)
		}
		if a.Left > 0 {
			err = fmt.Errorf("%w: the Lease of %s leaves %d out", errUntold, a.Replica, a.Left)
		}
	}
	// Who drains clusters need not have the right to read Secrets.
	if remote, err := c.RemoteClusters(ctx, namespace); err == nil {
		for i := range remote {
			known = append(known, remote[i].ID)
		}
	}
	set, setErr := c.settings(ctx, namespace)
	for id := range set {
		known = append(known, id)
	}
	slices.Sort(known)
	return slices.Compact(known), errors.Join(err, setErr)
}

// settings are those of the ConfigMap, none when it is not there.
func (c *Cluster) settings(ctx context.Context, namespace string) (mesh.ClusterSettings, error) {
	api, err := kube.NewClient(c.config)
	if err != nil {
		return nil, err
	}
	m, err := api.ConfigMaps(namespace).Get(ctx, clustersettings.ConfigMap)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is set: %w", err)
	}
	return clustersettings.Parse(m.Data[clustersettings.Key])
}
