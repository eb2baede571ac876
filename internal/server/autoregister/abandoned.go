package autoregister

import (
	"context"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

// abandonedInterval is the interval between searches for abandoned entries.
const abandonedInterval = 10 * Grace

// maxDeleted bounds the entries that a search deletes in a cluster; the next one deletes more.
const maxDeleted = 1000

// DeleteAbandoned deletes, until ctx ends, the entries that a control plane left behind when it
// ended. It is a Task of the holder of the Lease.
func (r *Registrations) DeleteAbandoned(ctx context.Context) error {
	tick := time.NewTicker(abandonedInterval)
	defer tick.Stop()
	for {
		r.mu.Lock()
		apis := maps.Clone(r.apis)
		r.mu.Unlock()
		for id, api := range apis {
			if err := r.deleteAbandoned(ctx, id, api); err != nil && ctx.Err() == nil {
				r.cfg.Log.Warn("WorkloadEntries of machines that are gone cannot be deleted", "cluster", id, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (r *Registrations) deleteAbandoned(ctx context.Context, id mesh.ClusterID, api *kube.Client) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var found []*metav1.PartialObjectMetadata
	entries := schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "workloadentries"}
	err := api.EachMetadata(ctx, entries, metav1.ListOptions{}, func(o *metav1.PartialObjectMetadata) {
		if len(found) < maxDeleted && r.abandoned(o.Annotations) {
			o.TypeMeta = metav1.TypeMeta{APIVersion: apiVersion, Kind: "WorkloadEntry"}
			found = append(found, o)
		}
	})
	if err != nil {
		return err
	}
	for _, o := range found {
		if err := remove(ctx, api, o); err != nil {
			r.cfg.Written(id, Failed)
			return err
		}
		r.cfg.Written(id, Deleted)
		r.cfg.Log.Info("the proxy of a machine is gone: its registration ended", "workload_entry", string(id)+"/"+o.Namespace+"/"+o.Name)
	}
	return nil
}

// abandoned reports whether the proxy of a registered machine is gone for good: disconnected
// for longer than the grace period, or connected for so long that its stream must have been
// renewed.
func (r *Registrations) abandoned(annotations map[string]string) bool {
	if annotations[annotationGroup] == "" {
		return false
	}
	now := r.cfg.Now()
	if gone, err := time.Parse(time.RFC3339Nano, annotations[annotationDisconnected]); err == nil {
		return now.Sub(gone) >= 2*Grace // its own control plane goes first
	}
	at, err := time.Parse(time.RFC3339Nano, annotations[annotationConnected])
	return err == nil && r.cfg.MaxAge > 0 && now.Sub(at) > r.cfg.MaxAge*3/2
}
