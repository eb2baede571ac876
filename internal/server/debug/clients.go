package debug

import (
	"context"
	"time"

	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// clients is a page about connections, in Istio's fields.
type clients struct {
	Total     int      `json:"totalClients"`
	Connected []client `json:"clients,omitempty"`
}

type client struct {
	ConnectionID string              `json:"connectionId"`
	ConnectedAt  time.Time           `json:"connectedAt"`
	Address      string              `json:"address"`
	Labels       map[string]string   `json:"labels,omitempty"`
	Metadata     map[string]string   `json:"metadata,omitempty"`
	Watches      map[string][]string `json:"watches,omitempty"` // by type URL; * is everything
}

// connections makes the page of connected proxies.
func (p *Pages) connections(_ context.Context, q Query) (any, error) {
	var out clients
	for _, x := range p.visible(q.Rights) {
		out.Connected = append(out.Connected, client{ConnectionID: x.ID, ConnectedAt: x.Connected, Address: x.Address})
	}
	out.Total = len(out.Connected)
	return out, nil
}

// adsz makes the page of the nodes and watches of all proxies, or of ?proxyID=.
func (p *Pages) adsz(_ context.Context, q Query) (any, error) {
	all := p.visible(q.Rights)
	if q.Get("proxyID") != "" {
		x, err := p.proxy(q)
		if err != nil {
			return nil, err
		}
		all = []history.Proxy{*x}
	}
	out := clients{Total: len(all)}
	for i := range all {
		out.Connected = append(out.Connected, p.client(&all[i]))
	}
	return out, nil
}

func (p *Pages) client(x *history.Proxy) client {
	c := client{
		ConnectionID: x.ID, ConnectedAt: x.Connected, Address: x.Address, Labels: x.Node.Labels,
		Metadata: map[string]string{}, Watches: map[string][]string{},
	}
	for key, value := range map[string]string{
		"CLUSTER_ID": string(x.Node.Cluster), "NAMESPACE": x.Node.Namespace, "SERVICE_ACCOUNT": x.Node.ServiceAccount,
		"NETWORK": string(x.Node.Network), "MESH_ID": x.Node.MeshID, "ISTIO_VERSION": x.Node.Version,
	} {
		if value != "" {
			c.Metadata[key] = value
		}
	}
	for url, sent := range p.cfg.Sent(x.ID) {
		names := append([]string{}, sent.Names...)
		if sent.Wildcard {
			names = append(names, "*")
		}
		c.Watches[url] = names
	}
	return c
}
