package proxyconfig

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
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
	Address
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

// cells returns the cells of the columns NETWORK, LOCALITY, PRIORITY, WEIGHT and GATEWAY.
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
	Seen    *Seen // counts clusters
}

// HealthStatuses returns the health statuses in Envoy's order.
func HealthStatuses() []string {
	var names []string
	for _, number := range slices.Sorted(maps.Keys(corev3.HealthStatus_name)) {
		names = append(names, corev3.HealthStatus_name[number])
	}
	return names
}

func (f *EndpointFilter) matchesAddress(a Address) bool {
	path, isPipe := strings.CutPrefix(a.Host, unixPrefix)
	return (matchesFold(f.Address, a.Host) || matchesFold(f.Address, a.String()) || isPipe && matchesFold(f.Address, path)) && (f.Port == 0 || f.Port == a.Port)
}

func (f *EndpointFilter) matches(e *Endpoint) bool {
	return f.matchesAddress(e.Address) && matchesFold(f.Status, e.Status)
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
		if p := known[key{e.Cluster, e.Address}]; p != nil {
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
			out = append(out, Endpoint{Address: e.Addresses[0], Status: e.Status, Unchecked: true, Cluster: a.Cluster, Placement: e.Placement})
		}
	}
	sortEndpoints(out)
	return out
}

func sortEndpoints(endpoints []Endpoint) {
	slices.SortStableFunc(endpoints, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Cluster, b.Cluster))
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

// EndpointTable returns endpoints in Istio's columns, and with wide their placement.
func EndpointTable(endpoints []Endpoint, wide bool) *output.Table {
	t := &output.Table{
		Header: []string{"ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"},
		Rows:   make([][]string, 0, len(endpoints)),
	}
	if wide {
		t.Header = append(t.Header, "NETWORK", "LOCALITY", "PRIORITY", "WEIGHT", "GATEWAY")
	}
	for i := range endpoints {
		e := &endpoints[i]
		outlier := "OK"
		switch {
		case e.Ejected:
			outlier = "FAILED"
		case e.Unchecked:
			outlier = "-"
		}
		row := []string{e.String(), e.Status, outlier, e.Cluster}
		if wide {
			row = append(row, e.cells()...)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
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
			f.Seen.add()
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
	var h struct {
		Address Address `json:"address"`
		Health  struct {
			Status  string `json:"eds_health_status,case:ignore"`
			Ejected bool   `json:"failed_outlier_check,case:ignore"`
		} `json:"health_status,case:ignore"`
		Locality locality `json:"locality"`
		Priority uint32   `json:"priority"`
		Weight   uint32   `json:"weight"`
	}
	err := json.UnmarshalDecode(d.Decoder, &h)
	return Endpoint{
		Address: h.Address.orUnknown(), Status: cmp.Or(h.Health.Status, "UNKNOWN"), Ejected: h.Health.Ejected,
		Placement: Placement{Locality: string(h.Locality), Priority: h.Priority, Weight: h.Weight},
	}, err
}

// Address is an address of an endpoint.
type Address struct {
	// Host is an IP address, unix://<path>, envoy://<listener>/<id> or "unknown".
	Host string
	// Port is 0 for addresses without a port.
	Port uint32
}

// unixPrefix comes before the path of a Unix socket in Address.Host.
const unixPrefix = "unix://"

// String omits port 0.
func (a Address) String() string {
	if a.Port == 0 {
		return a.Host
	}
	return net.JoinHostPort(a.Host, strconv.FormatUint(uint64(a.Port), 10))
}

func (a Address) orUnknown() Address {
	a.Host = cmp.Or(a.Host, "unknown")
	return a
}

// UnmarshalJSONFrom reads an envoy.config.core.v3.Address.
func (a *Address) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var kinds struct {
		Socket struct {
			Address string `json:"address"`
			Port    uint32 `json:"port_value,case:ignore"`
			Named   string `json:"named_port,case:ignore"`
		} `json:"socket_address,case:ignore"`
		Pipe *struct {
			Path string `json:"path"`
		} `json:"pipe"`
		Internal *struct {
			Listener string `json:"server_listener_name,case:ignore"`
			ID       string `json:"endpoint_id,case:ignore"`
		} `json:"envoy_internal_address,case:ignore"`
	}
	err := json.UnmarshalDecode(d, &kinds)
	a.Host, a.Port = kinds.Socket.Address, kinds.Socket.Port
	switch {
	case kinds.Socket.Named != "":
		a.Host += ":" + kinds.Socket.Named
	case kinds.Pipe != nil:
		a.Host = unixPrefix + kinds.Pipe.Path
	case kinds.Internal != nil:
		a.Host = "envoy://" + kinds.Internal.Listener + "/" + kinds.Internal.ID
	}
	return err
}

// locality is an envoy.config.core.v3.Locality as region/zone/subzone, without unset parts
// at the end.
type locality string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *locality) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var parts struct {
		Region  string `json:"region"`
		Zone    string `json:"zone"`
		SubZone string `json:"sub_zone,case:ignore"`
	}
	err := json.UnmarshalDecode(d, &parts)
	*l = locality(strings.TrimRight(parts.Region+"/"+parts.Zone+"/"+parts.SubZone, "/"))
	return err
}
