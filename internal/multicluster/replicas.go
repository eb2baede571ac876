package multicluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	replicaTimeout = 5 * time.Second
	replicaPause   = 200 * time.Millisecond
	maxReplicaPage = 16 << 20 // bytes
)

// replicaCluster is what a replica says of one cluster.
type replicaCluster struct {
	Cluster                           mesh.ClusterID
	State, Credential, NextCredential string
	Cause, Reason                     string
}

// behind says why a replica does not use the credential yet, empty when it does.
func behind(ctx context.Context, address string, id mesh.ClusterID, credential string) string {
	list, err := replicaClusters(ctx, address)
	if err != nil {
		return err.Error()
	}
	for _, c := range list {
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

// replicaClusters asks the debug address of a replica, host:port.
func replicaClusters(ctx context.Context, address string) ([]replicaCluster, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/debug/clusters", nil)
	if err != nil {
		return nil, err
	}
	resp, err := dial.HTTPClient(replicaTimeout, nil).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answers %s", resp.Status)
	}
	var page struct{ Clusters []replicaCluster }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReplicaPage)).Decode(&page); err != nil {
		return nil, fmt.Errorf("answers what is no list of clusters: %w", err)
	}
	return page.Clusters, nil
}

// WaitInUse returns when every replica, each a debug address, reads the cluster
// with the credential. The error names those that do not when ctx ends.
func WaitInUse(ctx context.Context, replicas []string, id mesh.ClusterID, credential string, say func(string, ...any)) error {
	said := map[string]string{}
	for {
		var waiting []string
		for _, address := range replicas {
			why := behind(ctx, address, id, credential)
			if why != "" {
				waiting = append(waiting, address+" "+why)
			}
			if last, told := said[address]; ctx.Err() == nil && (!told || last != why) {
				said[address] = why
				if why == "" {
					why = "uses the new credential"
				}
				say("replica %s %s", address, why)
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not every replica uses credential %s: %s", credential, strings.Join(waiting, "; "))
		case <-time.After(replicaPause):
		}
	}
}
