package proxyconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// naive is the whole of /clusters?format=json in memory.
type naive struct {
	ClusterStatuses []struct {
		Name         string         `json:"name"`
		HostStatuses []naiveAddress `json:"host_statuses"`
	} `json:"cluster_statuses"`
}

type naiveAddress struct {
	Address struct {
		SocketAddress *struct {
			Address   string `json:"address"`
			PortValue uint32 `json:"port_value"`
		} `json:"socket_address"`
		Pipe *struct {
			Path string `json:"path"`
		} `json:"pipe"`
		Internal *struct {
			Listener   string `json:"server_listener_name"`
			EndpointID string `json:"endpoint_id"`
		} `json:"envoy_internal_address"`
	} `json:"address"`
	Weight       uint32        `json:"weight"`
	Priority     uint32        `json:"priority"`
	Locality     naiveLocality `json:"locality"`
	HealthStatus struct {
		EDS    string `json:"eds_health_status"`
		Failed bool   `json:"failed_outlier_check"`
	} `json:"health_status"`
}

func (n *naiveAddress) split() Address {
	switch a := n.Address; {
	case a.SocketAddress != nil:
		return Address{cmp.Or(a.SocketAddress.Address, "unknown"), a.SocketAddress.PortValue}
	case a.Pipe != nil:
		return Address{Host: "unix://" + a.Pipe.Path}
	case a.Internal != nil:
		return Address{Host: "envoy://" + a.Internal.Listener + "/" + a.Internal.EndpointID}
	}
	return Address{Host: "unknown"}
}

// kinds counts the kinds of addresses, of which one is allowed.
func (n *naiveAddress) kinds() int {
	count := 0
	for _, is := range []bool{n.Address.SocketAddress != nil, n.Address.Pipe != nil, n.Address.Internal != nil} {
		if is {
			count++
		}
	}
	return count
}

func (n *naive) endpoints(t *testing.T, cluster string) []Endpoint {
	var out []Endpoint
	for _, c := range n.ClusterStatuses {
		for _, h := range c.HostStatuses {
			e := Endpoint{Status: cmp.Or(h.HealthStatus.EDS, "UNKNOWN"), Ejected: h.HealthStatus.Failed, Cluster: c.Name}
			if h.kinds() > 1 {
				t.Skip("more than one kind of address: any may be taken")
			}
			e.Address = h.split()
			e.Weight, e.Priority, e.Locality = h.Weight, h.Priority, h.Locality.String()
			if cluster == "" || strings.EqualFold(cluster, c.Name) {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Cluster, b.Cluster))
	})
	return out
}

// FuzzReadEndpoints: reading as a stream equals decoding the whole document, and the
// filter only omits endpoints.
func FuzzReadEndpoints(f *testing.F) {
	f.Add(must[[]byte](f)(io.ReadAll(testdata(f, clustersDump))), "xds-grpc")
	f.Add([]byte(`{"cluster_statuses":[{"name":"a","host_statuses":[{"address":{"pipe":{"path":"p"}}},{}]}]}`), "a")
	f.Add([]byte(`{"cluster_statuses":[{"host_statuses":[{"address":{"envoy_internal_address":{"endpoint_id":"p"}},"health_status":{"failed_outlier_check":true}}],"name":"b"}]}`), "B")
	f.Add([]byte(`{"clusterStatuses":[{"hostStatuses":[]}]}`), "")
	f.Fuzz(func(t *testing.T, data []byte, cluster string) {
		got, err := ReadEndpoints(bytes.NewReader(data), EndpointFilter{Cluster: cluster})
		statuses, jsonErr := ReadClusterStatuses(bytes.NewReader(data), EndpointFilter{Cluster: cluster})
		if err != nil {
			return
		}
		if jsonErr != nil {
			t.Fatalf("rows are read, JSON is not: %v", jsonErr)
		}
		for _, s := range statuses {
			if !json.Valid(s) {
				t.Fatalf("not JSON: %s", s)
			}
		}
		var want naive
		if err := json.Unmarshal(snakeNames(t, data), &want); err != nil {
			t.Fatalf("read as a stream but not as a whole: %v", err)
		}
		if diff := gocmp.Diff(want.endpoints(t, cluster), got); diff != "" {
			t.Error(diff)
		}
	})
}

// snakeNames converts all member names to snake case. It skips documents in which the name
// of a field is in neither spelling of proto JSON: not all readers ignore it.
func snakeNames(t *testing.T, data []byte) []byte {
	t.Helper()
	var v any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("read as a stream but not valid JSON: %v", err)
	}
	var walk func(any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			out := map[string]any{}
			for name, value := range v {
				snake := snakeCase(name)
				if !slices.Contains(naiveFields, snake) && slices.ContainsFunc(naiveFields, func(f string) bool { return folded(f) == folded(name) }) {
					t.Skip("the name of a field in a wrong spelling")
				}
				out[snake] = walk(value)
			}
			return out
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		}
		return v
	}
	out, err := json.Marshal(walk(v))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// naiveFields are the fields that both the readers and the naive types read.
var naiveFields = []string{
	"cluster_statuses", "name", "host_statuses", "address", "socket_address", "port_value", "pipe", "path",
	"envoy_internal_address", "server_listener_name", "endpoint_id", "weight", "priority", "locality", "health_status",
	"eds_health_status", "failed_outlier_check", "region", "zone", "sub_zone", "cluster_name", "endpoints", "lb_endpoints",
	"endpoint_name", "load_balancing_weight", "metadata", "endpoint", "additional_addresses",
}

func folded(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
}

type naiveLocality struct {
	Region  string `json:"region"`
	Zone    string `json:"zone"`
	SubZone string `json:"sub_zone"`
}

func (l naiveLocality) String() string {
	text := l.Region
	switch {
	case l.SubZone != "":
		text += "/" + l.Zone + "/" + l.SubZone
	case l.Zone != "":
		text += "/" + l.Zone
	}
	return strings.TrimRight(text, "/")
}

// naiveAssignment is an assignment whole in memory.
type naiveAssignment struct {
	Cluster   string `json:"cluster_name"`
	Endpoints []struct {
		Locality  naiveLocality `json:"locality"`
		Priority  uint32        `json:"priority"`
		Endpoints []struct {
			Status   string `json:"health_status"`
			Name     string `json:"endpoint_name"`
			Weight   uint32 `json:"load_balancing_weight"`
			Metadata any    `json:"metadata"`
			Endpoint struct {
				naiveAddress
				More []naiveAddress `json:"additional_addresses"`
			} `json:"endpoint"`
		} `json:"lb_endpoints"`
	} `json:"endpoints"`
}

func (n *naiveAssignment) endpoints(t *testing.T) []Assigned {
	var out []Assigned
	for _, l := range n.Endpoints {
		for _, e := range l.Endpoints {
			if e.Metadata != nil {
				t.Skip("metadata: what it says of the place is tested elsewhere")
			}
			a := Assigned{Status: cmp.Or(e.Status, "UNKNOWN"), Placement: Placement{Locality: l.Locality.String(), Priority: l.Priority, Weight: e.Weight}}
			for _, address := range append([]naiveAddress{e.Endpoint.naiveAddress}, e.Endpoint.More...) {
				if address.kinds() > 1 {
					t.Skip("more than one kind of address: any may be taken")
				}
				a.Addresses = append(a.Addresses, address.split())
			}
			if e.Name != "" {
				a.Addresses[0].Host = e.Name
			}
			out = append(out, a)
		}
	}
	return out
}

// FuzzReadAssignments: reading as a stream equals decoding the whole assignment.
func FuzzReadAssignments(f *testing.F) {
	for _, a := range must[[]Assignment](f)(ReadAssignments(testdata(f, assignmentsDump), EndpointFilter{}, true)) {
		f.Add([]byte(a.JSON))
	}
	f.Add([]byte(`{"cluster_name":"a","endpoints":[{"lb_endpoints":[{"endpoint_name":"n","health_status":"DRAINING"},{}],"locality":{"zone":"z"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dump := fmt.Appendf(nil, `{"configs":[{"@type":%q,"dynamic_endpoint_configs":[{"endpoint_config":%s}]}]}`, assignmentSection.typeURL, data)
		found, err := ReadAssignments(bytes.NewReader(dump), EndpointFilter{}, true)
		if err != nil || len(found) != 1 {
			return
		}
		if !json.Valid(found[0].JSON) {
			t.Fatalf("not JSON: %s", found[0].JSON)
		}
		var want naiveAssignment
		if err := json.Unmarshal(snakeNames(t, data), &want); err != nil {
			t.Fatalf("read as a stream but not as a whole: %v", err)
		}
		if diff := gocmp.Diff(want.endpoints(t), found[0].Endpoints); diff != "" || want.Cluster != found[0].Cluster {
			t.Errorf("of %q, not %q: %s", want.Cluster, found[0].Cluster, diff)
		}
	})
}

// FuzzConfigDump: no dump makes a reader panic or hang, and results can be written as
// JSON.
func FuzzConfigDump(f *testing.F) {
	f.Add(must[[]byte](f)(io.ReadAll(testdata(f, configDump))))
	for _, s := range []section{clusterSection, listenerSection, routeSection, secretSection, extensionSection, bootstrapSection, assignmentSection} {
		for list, path := range s.paths {
			open, end := "", ""
			for _, p := range path {
				open, end = open+`{"`+p+`":`, "}"+end
			}
			f.Add(fmt.Appendf(nil, `{"configs":[{"@type":%q,%q:[%s{"name":"a"}%s]}]}`, s.typeURL, list, open, end))
		}
	}
	f.Add([]byte(dynamicDump(`,"dynamic_warming_clusters":[{"cluster":{"name":"a"}}]`, `,"dynamicListeners":[{"name":"l","warming_state":{"listener":{}},"errorState":{"details":"x"}}]`, "")))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range DynamicTypes() {
			types := []string{name}
			for _, alike := range []bool{false, true} {
				d, err := ReadDynamic(bytes.NewReader(data), Selection{Types: types, Alike: alike})
				if err != nil {
					continue
				}
				for _, c := range compare(t, d, d, types...) {
					if !c.Match {
						t.Errorf("it differs from itself: %+v", c)
					}
				}
				spaced := *d // the same, but not to the byte
				spaced.Types = map[string]DynamicType{name: {resources: maps.Clone(d.Types[name].resources)}}
				for key, r := range spaced.Types[name].resources {
					if len(r.raw) > 0 {
						r.raw = append([]byte(" "), r.raw...)
						spaced.Types[name].resources[key] = r
					}
				}
				// Without its description, the secrets of a resource are not known.
				all, _ := Compare(t.Context(), d, &spaced, types)
				for _, c := range all {
					if !c.Match {
						t.Errorf("it differs from itself with a space: %+v", c)
					}
				}
			}
		}
		written := func(err error, resources any) {
			if err != nil {
				return
			}
			if _, err := json.Marshal(resources); err != nil {
				t.Error(err)
			}
		}
		clusters, err := ReadClusters(bytes.NewReader(data), ClusterFilter{}, true)
		written(err, Resources(clusters))
		listeners, err := ReadListeners(bytes.NewReader(data), ListenerFilter{}, true)
		written(err, Resources(listeners))
		routes, err := ReadRoutes(bytes.NewReader(data), RouteFilter{}, true)
		written(err, Resources(routes))
		secrets, err := ReadSecrets(bytes.NewReader(data))
		written(err, secrets.Resource)
		extensions, err := ReadExtensions(bytes.NewReader(data))
		written(err, extensions.Resource)
		if bootstrap, err := ReadBootstrap(bytes.NewReader(data)); err == nil {
			written(nil, bootstrap.Resource)
		}
		assignments, err := ReadAssignments(bytes.NewReader(data), EndpointFilter{}, true)
		written(err, Resources(assignments))
		if o, err := ReadOverview(bytes.NewReader(data), OverviewFilter{}); err == nil {
			for _, part := range o.Parts(true, dumpTime) {
				if err := part.Table.Write(io.Discard); err != nil {
					t.Error(err)
				}
			}
		}
		if dump, err := ReadDump(bytes.NewReader(data)); err == nil {
			written(nil, dump.Configs)
		}
	})
}
