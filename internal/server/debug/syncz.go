package debug

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// SyncStatus is one stream in /debug/syncz: first Istio's fields, then ours. Sent and
// acked are equal if the proxy has accepted the last response.
type SyncStatus struct {
	ClusterID            mesh.ClusterID `json:"cluster_id,omitempty"`
	Proxy                string         `json:"proxy,omitempty"` // <name>.<namespace>
	ProxyType            mesh.NodeType  `json:"proxy_type,omitempty"`
	ProxyVersion         string         `json:"proxy_version,omitempty"` // of its Envoy
	IstioVersion         string         `json:"istio_version,omitempty"`
	ClusterSent          string         `json:"cluster_sent,omitempty"`
	ClusterAcked         string         `json:"cluster_acked,omitempty"`
	ListenerSent         string         `json:"listener_sent,omitempty"`
	ListenerAcked        string         `json:"listener_acked,omitempty"`
	RouteSent            string         `json:"route_sent,omitempty"`
	RouteAcked           string         `json:"route_acked,omitempty"`
	EndpointSent         string         `json:"endpoint_sent,omitempty"`
	EndpointAcked        string         `json:"endpoint_acked,omitempty"`
	ExtensionConfigSent  string         `json:"extensionconfig_sent,omitempty"`
	ExtensionConfigAcked string         `json:"extensionconfig_acked,omitempty"`
	// Resources by type URL.
	Resources map[string]ResourceStatus `json:"resources,omitempty"`

	Connection string         `json:"connection"` // id of the stream
	Connected  time.Time      `json:"connected"`
	Network    mesh.NetworkID `json:"network,omitempty"`
	Identity   string         `json:"identity,omitempty"`
	Variant    string         `json:"variant"` // sotw or delta
}

// ResourceStatus is one type of a stream.
type ResourceStatus struct {
	Sent      string    `json:"sent,omitempty"`  // version
	Acked     string    `json:"acked,omitempty"` // version
	SentTime  time.Time `json:"sentTime,omitzero"`
	LastError string    `json:"lastError,omitempty"` // of a NACK without a later ACK
	// Status is NOT_SENT, SYNCED, STALE (no answer yet) or ERROR.
	Status       string    `json:"status"`
	AnsweredTime time.Time `json:"answeredTime,omitzero"`
}

// statusName returns the name of a state in envoy.service.status.v3.ConfigStatus.
func statusName(t *history.TypeStatus) string {
	return strings.ReplaceAll(string(stateOf(t)), " ", "_")
}

// lastError returns why the proxy refused resources that it does not have, empty if it
// has all.
func lastError(t history.TypeStatus) string {
	switch {
	case t.NACK != nil:
		return cmp.Or(t.NACK.Message, "refused without a reason")
	case len(t.Quarantined) > 0:
		return fmt.Sprintf("left without %s: %s", t.Quarantined[0].Resource, t.Quarantined[0].Error)
	}
	return ""
}

// syncz makes the page of all proxies, or of those in ?namespace=.
func (p *Pages) syncz(_ context.Context, q Query) (any, error) {
	out := []SyncStatus{}
	namespace := q.Get("namespace")
	for _, x := range p.visible(q.Rights) {
		if namespace == "" || x.Node.Namespace == namespace {
			out = append(out, syncStatus(&x))
		}
	}
	return out, nil
}

// ProxySyncz makes the page of all proxies for readers that expect one row for each proxy, as
// Istio's page has. If a proxy has several streams, such as that of its Envoy and that of its agent,
// the row has the types of all of them, and of the newest stream what several have.
func (p *Pages) ProxySyncz() any {
	type name struct {
		cluster mesh.ClusterID
		proxy   string
	}
	proxies := p.cfg.Proxies()
	slices.SortStableFunc(proxies, func(a, b history.Proxy) int { return b.Connected.Compare(a.Connected) })
	rows := make(map[name]int)
	out := []SyncStatus{}
	for i := range proxies {
		x := &proxies[i]
		key := name{x.Node.Cluster, x.Node.ID.ProxyID()}
		if row, ok := rows[key]; ok {
			out[row].add(syncStatus(x))
			continue
		}
		rows[key] = len(out)
		out = append(out, syncStatus(x))
	}
	slices.SortFunc(out, func(a, b SyncStatus) int {
		return cmp.Or(cmp.Compare(a.ClusterID, b.ClusterID), cmp.Compare(a.Proxy, b.Proxy))
	})
	return out
}

// add adds the types of an older stream that have been sent only there.
func (s *SyncStatus) add(older SyncStatus) {
	for _, t := range []struct{ sent, acked, olderSent, olderAcked *string }{
		{&s.ClusterSent, &s.ClusterAcked, &older.ClusterSent, &older.ClusterAcked},
		{&s.ListenerSent, &s.ListenerAcked, &older.ListenerSent, &older.ListenerAcked},
		{&s.RouteSent, &s.RouteAcked, &older.RouteSent, &older.RouteAcked},
		{&s.EndpointSent, &s.EndpointAcked, &older.EndpointSent, &older.EndpointAcked},
		{&s.ExtensionConfigSent, &s.ExtensionConfigAcked, &older.ExtensionConfigSent, &older.ExtensionConfigAcked},
	} {
		if *t.sent == "" {
			*t.sent, *t.acked = *t.olderSent, *t.olderAcked
		}
	}
	for url, r := range older.Resources {
		if s.Resources[url].Sent == "" {
			s.Resources[url] = r
		}
	}
}

func syncStatus(x *history.Proxy) SyncStatus {
	s := SyncStatus{
		ClusterID: x.Node.Cluster, Proxy: x.Node.ID.ProxyID(), ProxyType: x.Node.ID.Type,
		ProxyVersion: x.Node.Envoy, IstioVersion: x.Node.Version,
		ClusterSent: x.Types["CDS"].Sent, ClusterAcked: x.Types["CDS"].Acked,
		ListenerSent: x.Types["LDS"].Sent, ListenerAcked: x.Types["LDS"].Acked,
		RouteSent: x.Types["RDS"].Sent, RouteAcked: x.Types["RDS"].Acked,
		EndpointSent: x.Types["EDS"].Sent, EndpointAcked: x.Types["EDS"].Acked,
		ExtensionConfigSent: x.Types["ECDS"].Sent, ExtensionConfigAcked: x.Types["ECDS"].Acked,
		Resources:  make(map[string]ResourceStatus, len(x.Types)),
		Connection: x.ID, Connected: x.Connected, Network: x.Node.Network, Variant: x.Variant.String(),
	}
	if x.Caller != (mesh.Caller{}) {
		s.Identity = x.Caller.Identity.String()
	}
	for _, url := range xdswire.PushOrder {
		t, ok := x.Types[xdswire.ShortType(url)]
		if !ok {
			continue
		}
		s.Resources[url] = ResourceStatus{Sent: t.Sent, Acked: t.Acked, SentTime: t.SentAt, Status: statusName(&t), AnsweredTime: t.AnsweredAt, LastError: lastError(t)}
	}
	return s
}
