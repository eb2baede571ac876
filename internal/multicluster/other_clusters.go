package multicluster

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// API is the access to a cluster by its name in the mesh.
type API struct {
	ID     mesh.ClusterID
	Config *rest.Config
}

// Links returns for each cluster the other clusters that its remote secrets name, and why those of
// some clusters could not be read.
func Links(ctx context.Context, clusters []API, systemNamespace string) (links map[mesh.ClusterID][]mesh.ClusterID, unread []error) {
	links = map[mesh.ClusterID][]mesh.ClusterID{}
	for _, c := range clusters {
		others, err := otherClusters(ctx, c.Config, c.ID, systemNamespace)
		if err != nil {
			unread = append(unread, fmt.Errorf("cluster %s: %w", c.ID, err))
			continue
		}
		links[c.ID] = append([]mesh.ClusterID{}, others...)
	}
	return links, unread
}

// otherClusters returns the other clusters of the mesh of a cluster: those that its remote secrets
// name.
func otherClusters(ctx context.Context, config *rest.Config, own mesh.ClusterID, systemNamespace string) ([]mesh.ClusterID, error) {
	api, err := kube.NewClient(config)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	secrets, err := api.Secrets(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: remotesecret.Label + "=true"})
	if err != nil {
		return nil, fmt.Errorf("list remote secrets: %w", err)
	}
	var out []mesh.ClusterID
	for i := range secrets.Items {
		for _, c := range remotesecret.Decode(&secrets.Items[i]) {
			if c.ID != own && !slices.Contains(out, c.ID) {
				out = append(out, c.ID)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}
