package proxyconfig

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/output"
)

// Endpoint is one host of one cluster of a proxy.
type Endpoint struct {
	// Address is an IP address, unix://<path>, envoy://<listener>/<id> or "unknown".
	Address string
	// Port is 0 for addresses without a port.
	Port uint32
	// Status is Envoy's health status: HEALTHY, UNHEALTHY, DRAINING …
	Status string
	// Ejected reports whether outlier detection ejected the host.
	Ejected bool
	// Unchecked reports that Ejected is not known.
	Unchecked bool
	Cluster   string
	Placement
}

// Placement is the place of an endpoint in load balancing.
type Placement struct {
	// Locality is region/zone/subzone, without unset parts at the end.
	Locality string
	Priority uint32
	Weight   uint32
	// Network is the network of the endpoint. Gateway is the cluster of the gateway, or
	// yes if the cluster is not known. Empty means unknown or none.
	Network, Gateway string
}

// placementHeader returns the columns of a Placement.
func placementHeader() []string {
	return []string{"NETWORK", "LOCALITY", "PRIORITY", "WEIGHT", "GATEWAY"}
}

func (p *Placement) cells() []string {
	return []string{
		cmp.Or(p.Network, "-"), cmp.Or(p.Locality, "-"), strconv.FormatUint(uint64(p.Priority), 10),
		strconv.FormatUint(uint64(p.Weight), 10), cmp.Or(p.Gateway, "-"),
	}
}

// EndpointFilter selects endpoints; zero fields select all. Strings are
// compared whole, ignoring case.
type EndpointFilter struct {
	Cluster string
	// Address is one without its port, or with it as a row shows it.
	Address string
	Port    uint32
	Status  string
}

// CheckStatus reports a status that Envoy does not have, ignoring case.
func (f *EndpointFilter) CheckStatus() error {
	names := HealthStatuses()
	if f.Status == "" || slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(f.Status, name) }) {
		return nil
	}
	return fmt.Errorf("%.60q is none of %s", f.Status, strings.Join(names, ", "))
}

// HealthStatuses returns the health statuses in Envoy's order.
func HealthStatuses() []string {
	var names []string
	for _, number := range slices.Sorted(maps.Keys(corev3.HealthStatus_name)) {
		names = append(names, corev3.HealthStatus_name[number])
	}
	return names
}

func (f *EndpointFilter) matchesAddress(host string, port uint32) bool {
	return (matchesFold(f.Address, host) || matchesFold(f.Address, joinHostPort(host, port))) &&
		(f.Port == 0 || f.Port == port)
}

func (f *EndpointFilter) matches(e *Endpoint) bool {
	return f.matchesAddress(e.Address, e.Port) && matchesFold(f.Status, e.Status)
}

func matchesFold(want, got string) bool { return want == "" || strings.EqualFold(want, got) }

// ErrNoClusters reports an empty /clusters response. An Envoy without clusters returns
// one, but so may a server that is not Envoy.
var ErrNoClusters = errors.New("the answer has no clusters")

// Place sets the network and gateway of endpoints from assignments.
func Place(endpoints []Endpoint, assignments []Assignment) {
	type key struct {
		cluster string
		Address
	}
	known := make(map[key]*Placement)
	for i := range assignments {
		for j := range assignments[i].Endpoints {
			e := &assignments[i].Endpoints[j]
			for _, a := range e.Addresses {
				known[key{assignments[i].Cluster, a}] = &e.Placement
			}
		}
	}
	for i := range endpoints {
		e := &endpoints[i]
		if p := known[key{e.Cluster, Address{e.Address, e.Port}}]; p != nil {
			e.Network, e.Gateway = p.Network, p.Gateway
		}
	}
}

// EndpointsOf returns the endpoints of assignments, in the order of ReadEndpoints. They
// are Unchecked.
func EndpointsOf(assignments []Assignment) []Endpoint {
	var out []Endpoint
	for _, a := range assignments {
		for _, e := range a.Endpoints {
			first := e.Addresses[0]
			out = append(out, Endpoint{
				Address: first.Host, Port: first.Port, Status: e.Status, Unchecked: true, Cluster: a.Cluster, Placement: e.Placement,
			})
		}
	}
	sortEndpoints(out)
	return out
}

func sortEndpoints(endpoints []Endpoint) {
	slices.SortStableFunc(endpoints, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Cluster, b.Cluster))
	})
}

// IsConfigDump reports whether a reader begins with a config dump. The other response
// with endpoints is /clusters.
func IsConfigDump(r *bufio.Reader) bool {
	start, _ := r.Peek(512) // shorter is what there is
	rest, object := bytes.CutPrefix(bytes.TrimLeft(start, " \t\r\n"), []byte("{"))
	return object && bytes.HasPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(`"configs"`))
}

// ReadEndpoints reads /clusters?format=json and returns the endpoints that the filter
// selects, sorted by address, port and cluster, or ErrNoClusters.
func ReadEndpoints(r io.Reader, f EndpointFilter) ([]Endpoint, error) {
	var found []Endpoint
	d := newDump(r)
	err := d.clusters(func() error {
		return d.array(func() error {
			hosts, err := d.clusterStatus(&f)
			found = append(found, hosts...)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	sortEndpoints(found)
	return found, nil
}

// ReadClusterStatuses reads /clusters?format=json and returns the whole status of each
// cluster with a selected endpoint, in order and as proto JSON, or ErrNoClusters.
func ReadClusterStatuses(r io.Reader, f EndpointFilter) ([]jsontext.Value, error) {
	var found []jsontext.Value
	d := newDump(r)
	err := d.clusters(func() error {
		return d.array(func() error {
			raw, err := d.resource()
			if err != nil {
				return err
			}
			hosts, err := newDump(bytes.NewReader(raw)).clusterStatus(&f)
			if err != nil || len(hosts) == 0 {
				return err
			}
			status, err := protoJSON(raw, (*adminv3.ClusterStatus)(nil))
			found = append(found, status)
			return err
		})
	})
	return found, err
}

// clusters reads /clusters?format=json and calls body at the list.
func (d *dump) clusters(body func() error) error {
	found := false
	err := d.document("endpoints", clustersMember, func() error {
		found = true
		return body()
	})
	if err == nil && !found {
		return ErrNoClusters
	}
	return err
}

// EndpointTable returns endpoints in Istio's columns.
func EndpointTable(endpoints []Endpoint) *output.Table {
	t := &output.Table{
		Header: []string{"ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"},
		Rows:   make([][]string, 0, len(endpoints)),
	}
	for _, e := range endpoints {
		outlier := "OK"
		switch {
		case e.Ejected:
			outlier = "FAILED"
		case e.Unchecked:
			outlier = "-"
		}
		t.Rows = append(t.Rows, []string{e.hostPort(), e.Status, outlier, e.Cluster})
	}
	return t
}

// WideEndpointTable is EndpointTable with the placement of the endpoints.
func WideEndpointTable(endpoints []Endpoint) *output.Table {
	t := EndpointTable(endpoints)
	t.Header = append(t.Header, placementHeader()...)
	for i := range endpoints {
		t.Rows[i] = append(t.Rows[i], endpoints[i].cells()...)
	}
	return t
}

func (e *Endpoint) hostPort() string { return joinHostPort(e.Address, e.Port) }

// joinHostPort omits port 0.
func joinHostPort(host string, port uint32) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// clusterStatus reads the status of one cluster and returns the selected endpoints. Envoy
// prints the name first, so that an excluded cluster is skipped at once.
func (d *dump) clusterStatus(f *EndpointFilter) ([]Endpoint, error) {
	var found []Endpoint
	cluster, excluded := "", false
	err := d.object(func(name string) error {
		switch {
		case name == "name":
			var err error
			cluster, err = d.text()
			excluded = !matchesFold(f.Cluster, cluster)
			return err
		case name == "host_statuses" && !excluded:
			return d.array(func() error {
				host, err := d.hostStatus()
				if err == nil && f.matches(&host) {
					found = append(found, host)
				}
				return err
			})
		}
		return d.SkipValue()
	})
	if excluded {
		return nil, err
	}
	for i := range found {
		found[i].Cluster = cluster
	}
	return found, err
}

// hostStatus reads one envoy.admin.v3.HostStatus. It decodes only the fields of a row.
func (d *dump) hostStatus() (Endpoint, error) {
	e := Endpoint{Address: "unknown", Status: "UNKNOWN"}
	err := d.object(func(name string) (err error) {
		switch name {
		case "weight":
			return json.UnmarshalDecode(d.Decoder, &e.Weight)
		case "priority":
			return json.UnmarshalDecode(d.Decoder, &e.Priority)
		case "locality":
			e.Locality, err = d.locality()
			return err
		case "address":
			return d.object(func(kind string) error { return d.address(kind, &e.Address, &e.Port) })
		case "health_status":
			return d.object(func(name string) (err error) {
				switch name {
				case "eds_health_status":
					return json.UnmarshalDecode(d.Decoder, &e.Status)
				case "failed_outlier_check":
					return json.UnmarshalDecode(d.Decoder, &e.Ejected)
				}
				return d.SkipValue()
			})
		}
		return d.SkipValue()
	})
	return e, err
}

// address reads the value of an envoy.config.core.v3.Address of that kind.
func (d *dump) address(kind string, host *string, port *uint32) error {
	var path, listener, id string
	field := func(name string) any {
		switch kind + "." + name {
		case "socket_address.address":
			return host
		case "socket_address.port_value":
			return port
		case "pipe.path":
			return &path
		case "envoy_internal_address.server_listener_name":
			return &listener
		case "envoy_internal_address.endpoint_id":
			return &id
		}
		return nil
	}
	err := d.object(func(name string) error {
		if into := field(name); into != nil {
			return json.UnmarshalDecode(d.Decoder, into)
		}
		return d.SkipValue()
	})
	switch kind {
	case "pipe":
		*host = "unix://" + path
	case "envoy_internal_address":
		*host = "envoy://" + listener + "/" + id
	}
	return err
}
