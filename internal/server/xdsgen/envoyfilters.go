package xdsgen

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// chosenFilters holds the result of the EnvoyFilters for one workload. Its parts are empty
// if none selects the workload, so that such workloads share their views.
type chosenFilters struct {
	inbound    []snapshot.HTTPFilter
	outbound   []snapshot.HTTPFilter
	gateway    []snapshot.HTTPFilter
	extensions Views
}

// chooseFilters applies the EnvoyFilters that select a workload, in order. If two have an
// extension of one name, the first wins.
func chooseFilters(s *snapshot.Snapshot, namespace string, labels map[string]string) chosenFilters {
	var out chosenFilters
	var extensions []snapshot.Extension
	for _, f := range snapshot.EnvoyFiltersFor(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(namespace), labels) {
		for _, e := range f.Extensions {
			taken := func(other snapshot.Extension) bool { return other.Name == e.Name }
			if !slices.ContainsFunc(extensions, taken) {
				extensions = append(extensions, e)
			}
		}
		for _, p := range f.Filters {
			for context, into := range map[snapshot.Context]*[]snapshot.HTTPFilter{
				snapshot.InboundContext: &out.inbound, snapshot.OutboundContext: &out.outbound, snapshot.GatewayContext: &out.gateway,
			} {
				if p.Context == context || p.Context == snapshot.AnyContext {
					*into = append(*into, p)
				}
			}
		}
	}
	if len(extensions) > 0 {
		slices.SortFunc(extensions, func(a, b snapshot.Extension) int { return strings.Compare(a.Name, b.Name) })
		out.extensions.Shared = extensionView{facts: encodeFacts(extensions)}
	}
	return out
}

// extensionView is the view of the extension configurations (ECDS) of proxies with the
// same extensions.
type extensionView struct {
	facts string // []snapshot.Extension, encoded
}

func (v extensionView) Type() string { return xdswire.ExtensionType }

func (v extensionView) Keys() Keys { return Keys{Fixed: 1} }

func (v extensionView) Unit(*snapshot.Snapshot, Key) Unit { return extensionUnit(v) }

func (v extensionView) extensions() []snapshot.Extension {
	var list []snapshot.Extension
	decodeFacts(v.facts, &list)
	return list
}

type extensionUnit extensionView

func (u extensionUnit) Type() string { return xdswire.ExtensionType }

func (u extensionUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for _, e := range extensionView(u).extensions() {
		out = append(out, enc.Raw(xdswire.ExtensionType, e.Name, e.Body))
	}
	return out, nil
}

// encodeFilters makes a list of filters comparable. An empty list becomes "".
func encodeFilters(list []snapshot.HTTPFilter) string {
	if len(list) == 0 {
		return ""
	}
	return encodeFacts(list)
}

func decodeFilters(facts string) []snapshot.HTTPFilter {
	var list []snapshot.HTTPFilter
	if facts != "" {
		decodeFacts(facts, &list)
	}
	return list
}

// decodeFacts decodes the result of encodeFacts.
func decodeFacts(facts string, into any) {
	if err := json.Unmarshal([]byte(facts), into); err != nil {
		panic("xdsgen: facts that do not decode: " + err.Error())
	}
}

// filtersAt returns the filters for any of the ports, encoded. Listeners of other ports
// remain shared with proxies that have no filters.
func filtersAt(list []snapshot.HTTPFilter, ports ...uint32) string {
	var out []snapshot.HTTPFilter
	for _, f := range list {
		if f.Port == 0 || slices.Contains(ports, f.Port) {
			out = append(out, f)
		}
	}
	return encodeFilters(out)
}

// insertFilters inserts the filters for the port.
func (g *generator) insertFilters(h *hcmv3.HttpConnectionManager, list []snapshot.HTTPFilter, port uint32) {
	for i := range list {
		f := &list[i]
		if f.Port != 0 && f.Port != port {
			continue
		}
		at := placeOf(f, h.HttpFilters)
		if at < 0 {
			continue
		}
		filter := new(hcmv3.HttpFilter)
		if err := proto.Unmarshal(f.Body, filter); err != nil {
			g.fail(fmt.Errorf("decode an HTTP filter: %w", err))
		}
		h.HttpFilters = slices.Insert(h.HttpFilters, at, filter)
	}
}

// placeOf returns the index at which to insert the filter, or -1. The router remains the
// last filter of the list.
func placeOf(f *snapshot.HTTPFilter, list []*hcmv3.HttpFilter) int {
	last := len(list) - 1
	switch f.Insert {
	case snapshot.InsertFirst:
		return 0
	case snapshot.InsertLast:
		return last
	}
	near := slices.IndexFunc(list, func(h *hcmv3.HttpFilter) bool { return h.GetName() == f.Near })
	if near >= 0 && f.Insert == snapshot.InsertAfter {
		near = min(near+1, last)
	}
	return near
}
