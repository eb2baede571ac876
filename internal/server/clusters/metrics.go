package clusters

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/mesh"
)

// counters count what happened, under Istio's names.
type counters struct {
	events   *prometheus.CounterVec
	timeouts *prometheus.CounterVec
}

func newCounters(reg prometheus.Registerer) counters {
	c := counters{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remote_cluster_secret_events_total", Help: "Clusters that remote secrets and files added, updated and deleted.",
		}, []string{"event"}),
		timeouts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remote_cluster_sync_timeouts_total", Help: "Times that a remote cluster was not read in time.",
		}, []string{"cluster"}),
	}
	reg.MustRegister(c.events, c.timeouts)
	return c
}

func (c counters) event(what string)         { c.events.WithLabelValues(what).Inc() }
func (c counters) timeout(id mesh.ClusterID) { c.timeouts.WithLabelValues(string(id)).Inc() }
func (c counters) forget(id mesh.ClusterID)  { c.timeouts.DeleteLabelValues(string(id)) }

// collector collects the current state of the clusters, so that removed clusters leave
// no metrics.
type collector struct{ m *Manager }

// Describe sends nothing, which makes it an unchecked collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	metric := func(name, help string, labels ...string) func(float64, ...string) {
		desc := prometheus.NewDesc(name, help, labels, nil)
		return func(value float64, values ...string) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, values...)
		}
	}
	managed := metric("istiod_managed_clusters", "Clusters that are read.", "cluster_type")
	state := metric("istiod_remote_cluster_sync_status", "How far a cluster was read: 1 for its state.", "cluster", "cluster_type", "status")
	synced := metric("meshctl_cluster_synced", "Whether everything of a cluster was read once.", "cluster")
	lost := metric("meshctl_cluster_lost", "Whether a cluster that was read is not followed now.", "cluster")
	ends := metric("meshctl_cluster_token_expiry_timestamp", "When the token that a cluster is read with ends, in seconds since 1970.", "cluster")
	refused := metric("meshctl_cluster_refused_gateways", "Addresses of gateways of a cluster that are not used.", "cluster")
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gateways := c.m.cfg.Registry.RefusedGateways()
	list, _ := c.m.Status()
	number := map[string]int{"local": 0, "remote": 0}
	for _, s := range list {
		kind := "remote"
		if s.Own {
			kind = "local"
		}
		number[kind]++
		state(1, string(s.Cluster), kind, string(s.State))
		synced(flag(s.State == Synced || s.State == Lost), string(s.Cluster))
		lost(flag(s.State == Lost), string(s.Cluster))
		refused(float64(gateways[s.Cluster].Number), string(s.Cluster))
		if s.TokenEnds != nil {
			ends(float64(s.TokenEnds.Unix()), string(s.Cluster))
		}
	}
	for kind, n := range number {
		managed(float64(n), kind)
	}
}
