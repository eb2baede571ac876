package proxyconfig

import (
	"bytes"
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
	// Resource is the assignment as proto JSON; nil unless asked for.
	Resource jsontext.Value
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

// Address is a host and its port. Port is 0 without one.
type Address struct {
	Host string
	Port uint32
}

func (f *EndpointFilter) matchesAssigned(a *Assigned) bool {
	return matchesFold(f.Status, a.Status) && slices.ContainsFunc(a.Addresses, func(a Address) bool { return f.matchesAddress(a.Host, a.Port) })
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
	a, err := newDump(bytes.NewReader(raw)).assignment()
	if err != nil {
		return to, err
	}
	if !wanted(a.Cluster) {
		return to, nil
	}
	a.Endpoints = slices.DeleteFunc(a.Endpoints, func(e Assigned) bool { return !f.matchesAssigned(&e) })
	if len(a.Endpoints) == 0 {
		return to, nil
	}
	if resources {
		a.Resource, err = protoJSON(raw, (*endpointv3.ClusterLoadAssignment)(nil))
	}
	return append(to, a), err
}

// assignment reads one envoy.config.endpoint.v3.ClusterLoadAssignment. It decodes only
// the fields of a row.
func (d *dump) assignment() (Assignment, error) {
	var a Assignment
	err := d.object(func(name string) (err error) {
		switch name {
		case "cluster_name":
			a.Cluster, err = d.text()
			return err
		case "endpoints":
			return d.array(func() error {
				endpoints, err := d.localityEndpoints()
				a.Endpoints = append(a.Endpoints, endpoints...)
				return err
			})
		}
		return d.SkipValue()
	})
	return a, err
}

// localityEndpoints reads one LocalityLbEndpoints.
func (d *dump) localityEndpoints() ([]Assigned, error) {
	var found []Assigned
	var locality string
	var priority uint32
	err := d.object(func(name string) (err error) {
		switch name {
		case "locality":
			locality, err = d.locality()
			return err
		case "priority":
			return json.UnmarshalDecode(d.Decoder, &priority)
		case "lb_endpoints":
			return d.array(func() error {
				e, err := d.lbEndpoint()
				found = append(found, e)
				return err
			})
		}
		return d.SkipValue()
	})
	for i := range found {
		found[i].Locality, found[i].Priority = locality, priority
	}
	return found, err
}

// locality reads an envoy.config.core.v3.Locality.
func (d *dump) locality() (string, error) {
	var l struct {
		Region  string `json:"region"`
		Zone    string `json:"zone"`
		SubZone string `json:"sub_zone,case:ignore"`
	}
	err := json.UnmarshalDecode(d.Decoder, &l)
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.SubZone, "/"), err
}

// lbEndpoint reads one LbEndpoint.
func (d *dump) lbEndpoint() (Assigned, error) {
	e := Assigned{Status: "UNKNOWN"}
	first := Address{Host: "unknown"}
	var more []Address
	err := d.object(func(name string) error {
		switch name {
		case "endpoint":
			return d.object(func(name string) error {
				switch name {
				case "address":
					return d.addressOf(&first)
				case "additional_addresses":
					return d.array(func() error {
						a := Address{Host: "unknown"}
						err := d.object(func(name string) error {
							if name == "address" {
								return d.addressOf(&a)
							}
							return d.SkipValue()
						})
						more = append(more, a)
						return err
					})
				}
				return d.SkipValue()
			})
		case "endpoint_name":
			return json.UnmarshalDecode(d.Decoder, &first.Host)
		case "load_balancing_weight":
			return json.UnmarshalDecode(d.Decoder, &e.Weight)
		case "metadata":
			return d.placement(&e.Placement)
		case "health_status":
			return json.UnmarshalDecode(d.Decoder, &e.Status)
		}
		return d.SkipValue()
	})
	e.Addresses = append([]Address{first}, more...)
	return e, err
}

// placement reads the network and the gateway from an envoy.config.core.v3.Metadata.
func (d *dump) placement(p *Placement) error {
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
	p.Network = string(m.Filters.Own.Network)
	// name;namespace;service;revision;cluster. A gateway has only the last.
	if cluster, ok := strings.CutPrefix(string(m.Filters.Istio.Workload), ";;;;"); ok {
		p.Gateway = cmp.Or(cluster, "yes")
	}
	return nil
}

// addressOf reads an envoy.config.core.v3.Address.
func (d *dump) addressOf(a *Address) error {
	return d.object(func(kind string) error { return d.address(kind, &a.Host, &a.Port) })
}

// AssignmentTable returns the endpoints of config dumps in Istio's columns.
func AssignmentTable(assignments []Assignment) *output.Table {
	t := &output.Table{Header: []string{"NAME", "STATUS", "LOCALITY", "CLUSTER"}}
	for _, a := range assignments {
		for _, e := range a.Endpoints {
			names := make([]string, len(e.Addresses))
			for i, a := range e.Addresses {
				names[i] = joinHostPort(a.Host, a.Port)
			}
			t.Rows = append(t.Rows, []string{strings.Join(names, ","), e.Status, e.Locality, a.Cluster})
		}
	}
	return t
}

// WideAssignmentTable is AssignmentTable with the placement of the endpoints.
func WideAssignmentTable(assignments []Assignment) *output.Table {
	t := AssignmentTable(assignments)
	t.Header = append(t.Header, "NETWORK", "PRIORITY", "WEIGHT", "GATEWAY")
	row := 0
	for _, a := range assignments {
		for i := range a.Endpoints {
			cells := a.Endpoints[i].cells()
			t.Rows[row] = append(append(t.Rows[row], cells[0]), cells[2:]...)
			row++
		}
	}
	return t
}

// AssignmentResources returns the JSON of assignments that were read with resources.
func AssignmentResources(assignments []Assignment) []jsontext.Value {
	return resourcesOf(assignments, func(a Assignment) jsontext.Value { return a.Resource })
}
