package xds

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Offline answers proxies that are not connected. It chooses their views and generates
// them in the hub's rounds, as for streams. Only one goroutine at a time may use it.
type Offline struct {
	hub   *Hub
	first mail // with the snapshot, for the first round
}

// NewOffline returns an Offline for one snapshot. mayReadKeys is Config.MayReadKeys.
func NewOffline(g Generator, s *snapshot.Snapshot, mayReadKeys func(*snapshot.Snapshot, mesh.Caller, proxy.Node) error, log *slog.Logger, now func() time.Time) *Offline {
	return &Offline{
		hub: NewHub(Config{
			Generator: g, MayReadKeys: mayReadKeys, Metrics: NewMetrics(prometheus.NewRegistry()), Log: log, Now: now,
		}),
		first: mail{snapshot: s, changes: &snapshot.Changes{Everywhere: true}},
	}
}

// Sent returns the responses to a proxy, by type URL: all clusters and listeners, and of the
// types that requested returns, the resources with these names. requested returns the names
// that Envoy requests for the clusters and listeners; a type without names means all resources.
func (o *Offline) Sent(n proxy.Node, caller mesh.Caller, requested func(clusters, listeners []*xdswire.Resource) map[string][]string) (map[string]history.SentConfig, error) {
	h := o.hub
	sub := &subscriber{id: n.ID.ProxyID(), node: n, caller: caller, session: &session{queued: true}} // as if queued: nothing is sent
	sub.pod, sub.namespace = h.cfg.Generator.AssignReads(n)
	for i := range sub.demands {
		sub.demands[i].asked = i != sds
	}
	sub.demands[ecds].pull = plugins.PullDenied // plugins are shown without credentials
	m := o.first
	o.first = mail{}
	m.attach = append(m.attach, sub)
	h.round(m)
	if sub.err != nil {
		return nil, sub.err
	}
	clusters, listeners := sentViews(sub, cds), sentViews(sub, lds)
	names := requested(slices.Collect(clusters.all), slices.Collect(listeners.all))
	if secrets := h.names.Of(names[xdswire.SecretType]); h.cfg.Generator.Secrets != nil {
		snap := h.current.Load()
		keys := h.cfg.MayReadKeys != nil && h.cfg.MayReadKeys(snap, caller, n) == nil
		h.round(mail{demands: map[demandKey]demand{
			{sub, sds}: {asked: true, names: secrets, secrets: h.cfg.Generator.Secrets(snap, caller, keys, secrets)},
		}})
	}
	out := map[string]history.SentConfig{
		xdswire.ClusterType:  sentWhole(clusters),
		xdswire.ListenerType: sentWhole(listeners),
	}
	for _, url := range slices.Sorted(maps.Keys(names)) {
		i := typeIndex(url)
		if i < 0 {
			continue
		}
		view := sentViews(sub, i)
		if len(names[url]) == 0 {
			out[url] = sentWhole(view)
			continue
		}
		sent := history.SentConfig{Version: versionInfo(view.version()), Names: names[url]}
		for _, name := range names[url] {
			r := view.get(name)
			if r == nil {
				var err error
				if r, err = h.cfg.Generator.Fallback(url, name, &h.encoder); err != nil {
					return nil, err
				}
			}
			if r != nil {
				sent.Resources = append(sent.Resources, r)
			}
		}
		out[url] = sent
	}
	return out, nil
}

// sentViews returns the states of a subscriber's views of a type.
func sentViews(sub *subscriber, i int) viewSet {
	now, _ := sub.assigned.Load().types[i].pair()
	return now
}

func sentWhole(of viewSet) history.SentConfig {
	out := history.SentConfig{Version: versionInfo(of.version()), Wildcard: true, Resources: slices.Collect(of.all)}
	slices.SortFunc(out.Resources, compareNames)
	return out
}
