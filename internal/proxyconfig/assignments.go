package proxyconfig

import (
	"cmp"
	"io"
	"slices"
	"strings"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// Assignment holds the endpoints of one cluster in a config dump. Envoy makes it from
// EDS, DNS or the cluster itself.
type Assignment struct {
	Cluster string
	// Endpoints are in the order of the dump.
	Endpoints []Assigned
	Resource
}

// Assigned is one endpoint of an Assignment.
type Assigned struct {
	// Addresses are the first address and the additional ones. An endpoint by reference
	// has its name as the only one.
	Addresses []Address
	// Status is Envoy's health status: HEALTHY, UNHEALTHY, DRAINING …
	Status string
	Placement
}

func (f *EndpointFilter) matchesAssigned(a *Assigned) bool {
	return matchesFold(f.Status, a.Status) && slices.ContainsFunc(a.Addresses, func(a Address) bool { return f.matchesAddress(a) })
}

var assignmentSection = section{
	what:    "endpoint assignments",
	typeURL: "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump",
	paths: map[string][]string{
		"dynamic_endpoint_configs": {"endpoint_config"},
		"static_endpoint_configs":  {"endpoint_config"},
	},
	why: "a dump of /config_dump?include_eds has it",
}

// ReadAssignments reads a config dump and returns the endpoints that the filter selects,
// by cluster, sorted like clusters. With resources, each Assignment has the JSON of its
// whole cluster.
func ReadAssignments(r io.Reader, f EndpointFilter, resources bool) ([]Assignment, error) {
	var found []Assignment
	node := section{
		typeURL: bootstrapSection.typeURL, single: true, paths: map[string][]string{"bootstrap": {"node"}},
	}
	own := ""
	wanted := func(cluster string) bool { return matchesFold(f.Cluster, cluster) }
	sections, err := readSections(r, assignmentSection.what, []*section{&assignmentSection, &node}, func(s *section, _ string, raw jsontext.Value) (err error) {
		if s == &node {
			own = networkOf(raw)
			return nil
		}
		found, err = appendAssignment(found, raw, wanted, &f, resources)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !sections[&assignmentSection] {
		return nil, assignmentSection.missing()
	}
	for i := range found {
		found[i].inNetwork(own)
	}
	slices.SortStableFunc(found, compareAssignments)
	return found, nil
}

// networkOf returns the network that a node reports, empty without one.
func networkOf(node jsontext.Value) string {
	var n struct {
		Metadata struct {
			Network textOrNothing `json:"NETWORK"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(node, &n) // it may hold anything
	return string(n.Metadata.Network)
}

// inNetwork sets the network of service endpoints without one to the proxy's own.
// Istio's control planes do not name the networks of gateways, so those stay empty.
func (a *Assignment) inNetwork(own string) {
	if name, ok := mesh.ParseClusterName(a.Cluster); !ok || name.Direction != mesh.Outbound {
		return
	}
	for i := range a.Endpoints {
		if p := &a.Endpoints[i].Placement; p.Network == "" && p.Gateway == "" {
			p.Network = own
		}
	}
}

func compareAssignments(a, b Assignment) int { return compareClusterNames(a.Cluster, b.Cluster) }

// appendAssignment appends the assignment with the selected endpoints, if its cluster is
// wanted and it has any.
func appendAssignment(to []Assignment, raw jsontext.Value, wanted func(cluster string) bool, f *EndpointFilter, resources bool) ([]Assignment, error) {
	var fields assignmentFields
	if err := json.Unmarshal(raw, &fields); err != nil {
		return to, err
	}
	f.Seen.add()
	if !wanted(fields.Cluster) {
		return to, nil
	}
	a := Assignment{Cluster: fields.Cluster}
	a.Endpoints = slices.DeleteFunc(fields.endpoints(), func(e Assigned) bool { return !f.matchesAssigned(&e) })
	if len(a.Endpoints) == 0 {
		return to, nil
	}
	err := a.keep(raw, (*endpointv3.ClusterLoadAssignment)(nil), resources)
	return append(to, a), err
}

// assignmentFields are the fields of a row of an
// envoy.config.endpoint.v3.ClusterLoadAssignment.
type assignmentFields struct {
	Cluster    string `json:"cluster_name,case:ignore"`
	Localities []struct {
		Locality  locality         `json:"locality"`
		Priority  uint32           `json:"priority"`
		Endpoints []endpointFields `json:"lb_endpoints,case:ignore"`
		List      struct {
			Endpoints []endpointFields `json:"lb_endpoints,case:ignore"`
		} `json:"load_balancer_endpoints,case:ignore"`
		Collection *struct {
			Name string `json:"leds_collection_name,case:ignore"`
		} `json:"leds_cluster_locality_config,case:ignore"`
	} `json:"endpoints"`
}

// endpointFields are the fields of a row of an envoy.config.endpoint.v3.LbEndpoint.
type endpointFields struct {
	Endpoint struct {
		Address    Address `json:"address"`
		Additional []struct {
			Address Address `json:"address"`
		} `json:"additional_addresses,case:ignore"`
	} `json:"endpoint"`
	Name   string          `json:"endpoint_name,case:ignore"`
	Weight uint32          `json:"load_balancing_weight,case:ignore"`
	At     networkMetadata `json:"metadata"`
	Status string          `json:"health_status,case:ignore"`
}

func (f *assignmentFields) endpoints() []Assigned {
	var out []Assigned
	for _, l := range f.Localities {
		if l.Collection != nil { // Envoy gets the endpoints one by one
			l.Endpoints = append(l.Endpoints, endpointFields{Name: "endpoints of " + l.Collection.Name})
		}
		all := slices.Concat(l.Endpoints, l.List.Endpoints)
		for i := range all {
			e := &all[i]
			first := e.Endpoint.Address
			first.Host = cmp.Or(e.Name, first.Host)
			a := Assigned{Addresses: []Address{first.orUnknown()}, Status: cmp.Or(e.Status, "UNKNOWN")}
			for _, more := range e.Endpoint.Additional {
				a.Addresses = append(a.Addresses, more.Address.orUnknown())
			}
			a.Placement = Placement{string(l.Locality), l.Priority, e.Weight, e.At.network, e.At.gateway}
			out = append(out, a)
		}
	}
	return out
}

// networkMetadata is the network and the gateway in an envoy.config.core.v3.Metadata.
type networkMetadata struct{ network, gateway string }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (n *networkMetadata) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	raw, err := d.ReadValue()
	if err != nil {
		return err
	}
	var m struct {
		Filters struct {
			Istio struct {
				Workload textOrNothing `json:"workload"`
			} `json:"istio"`
			Own struct {
				Network textOrNothing `json:"network"`
			} `json:"meshctl"`
		} `json:"filter_metadata,case:ignore"`
	}
	_ = json.Unmarshal(raw, &m) // it may hold anything
	n.network = string(m.Filters.Own.Network)
	// name;namespace;service;revision;cluster. A gateway has only the last.
	if cluster, ok := strings.CutPrefix(string(m.Filters.Istio.Workload), ";;;;"); ok {
		n.gateway = cmp.Or(cluster, "yes")
	}
	return nil
}

// AssignmentTable returns the endpoints of config dumps in Istio's columns, and with wide
// their placement.
func AssignmentTable(assignments []Assignment, wide bool) *output.Table {
	t := &output.Table{Header: []string{"NAME", "STATUS", "LOCALITY", "CLUSTER"}}
	if wide {
		t.Header = append(t.Header, "NETWORK", "PRIORITY", "WEIGHT", "GATEWAY")
	}
	for _, a := range assignments {
		for i := range a.Endpoints {
			e := &a.Endpoints[i]
			names := make([]string, len(e.Addresses))
			for i, address := range e.Addresses {
				names[i] = strings.TrimPrefix(address.String(), unixPrefix) // as Istio has it in this table only
			}
			row := []string{strings.Join(names, ","), e.Status, e.Locality, a.Cluster}
			if wide {
				row = append(row, slices.Delete(e.cells(), 1, 2)...) // without the locality
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}
