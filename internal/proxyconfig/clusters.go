package proxyconfig

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// Cluster is one cluster of a config dump.
type Cluster struct {
	// Name is the whole name, such as
	// outbound|5000||helloworld.sample.svc.cluster.local.
	Name string
	// Type is the discovery type: EDS, STATIC … or the name of a custom cluster type. A cluster
	// that is not yet used is marked as warming.
	Type string
	// Rule is the DestinationRule that shaped the cluster, name.namespace.
	Rule string
	Resource
}

// ClusterFilter selects clusters; zero fields select all.
type ClusterFilter struct {
	// FQDN is the host, or some consecutive labels of it. A name that is not in Istio's
	// form counts as host.
	FQDN string
	// Port, Subset and Direction match the parts of the name. Names that are not in
	// Istio's form have none.
	Port      uint32
	Subset    string
	Direction mesh.Direction
	Seen      *Seen
}

func (f *ClusterFilter) matches(name string) bool {
	parts, ok := mesh.ParseClusterName(name)
	if !ok {
		parts, ok = mesh.ParseSNI(name)
	}
	if !ok {
		parts = mesh.ClusterName{Host: name}
	}
	return (f.Port == 0 || f.Port == parts.Port) &&
		matchesFold(f.Subset, parts.Subset) &&
		(f.Direction == "" || f.Direction == parts.Direction) &&
		(f.FQDN == "" || strings.EqualFold(f.FQDN, name) || hasLabels(parts.Host, f.FQDN))
}

// hasLabels reports whether the labels of part are consecutive labels of host.
func hasLabels(host, part string) bool {
	return strings.Contains("."+strings.ToLower(host)+".", "."+strings.ToLower(part)+".")
}

var clusterSection = section{
	what:    "clusters",
	typeURL: "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
	paths: map[string][]string{
		"dynamic_active_clusters":  {"cluster"},
		"dynamic_warming_clusters": {"cluster"},
		"static_clusters":          {"cluster"},
	},
}

// ReadClusters reads a config dump and returns the clusters that the filter selects, sorted by
// host, subset, port and direction. With resources, each active and static one has its JSON. A dump without any cluster is an error.
func ReadClusters(r io.Reader, f ClusterFilter, resources bool) ([]Cluster, error) {
	return readRows(r, &clusterSection, compareClusters, func(rows []Cluster, list string, raw jsontext.Value) ([]Cluster, error) {
		return appendCluster(rows, list, raw, &f, resources)
	})
}

func appendCluster(to []Cluster, list string, raw jsontext.Value, f *ClusterFilter, resources bool) ([]Cluster, error) {
	var c clusterFields
	if err := json.Unmarshal(raw, &c); err != nil {
		return to, err
	}
	f.Seen.add()
	if !f.matches(c.Name) {
		return to, nil
	}
	row := Cluster{
		Name: c.Name,
		Type: cmp.Or(c.ClusterType.Name, c.Type, "STATIC"),
		Rule: configName(string(c.Metadata.FilterMetadata.Istio.Config)),
	}
	warming := list == "dynamic_warming_clusters"
	if warming {
		row.Type += " (warming)"
	}
	err := row.keep(raw, (*clusterv3.Cluster)(nil), resources && !warming)
	return append(to, row), err
}

// clusterFields are the fields of a row. Clusters are many and large, and decoding whole
// messages would take ten times as long.
type clusterFields struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	ClusterType struct {
		Name string `json:"name"`
	} `json:"cluster_type,case:ignore"`
	Metadata struct {
		FilterMetadata struct {
			Istio struct {
				Config textOrNothing `json:"config"`
			} `json:"istio"`
		} `json:"filter_metadata,case:ignore"`
	} `json:"metadata"`
}

// textOrNothing is a JSON string. Other values decode as an empty one.
type textOrNothing string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *textOrNothing) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() != jsontext.KindString {
		return d.SkipValue()
	}
	tok, err := d.ReadToken()
	if err == nil {
		*t = textOrNothing(tok.String())
	}
	return err
}

func compareClusters(a, b Cluster) int { return compareClusterNames(a.Name, b.Name) }

func compareClusterNames(a, b string) int {
	x, y := nameParts(a), nameParts(b)
	return cmp.Or(
		cmp.Compare(x.Host, y.Host),
		cmp.Compare(x.Subset, y.Subset),
		cmp.Compare(x.Port, y.Port),
		cmp.Compare(x.Direction, y.Direction),
	)
}

// nameParts returns the parts of a cluster name. A name in another form is all host.
func nameParts(name string) mesh.ClusterName {
	if parts, ok := mesh.ParseClusterName(name); ok {
		return parts
	}
	return mesh.ClusterName{Host: name}
}

// ClusterTable returns clusters in Istio's columns, and with wide their whole names.
func ClusterTable(clusters []Cluster, wide bool) *output.Table {
	t := &output.Table{Header: []string{"SERVICE FQDN", "PORT", "SUBSET", "DIRECTION", "TYPE", "DESTINATION RULE"}}
	for _, c := range clusters {
		row := []string{c.Name, "-", "-", "-", c.Type, c.Rule}
		if p, ok := mesh.ParseClusterName(c.Name); ok {
			row = []string{p.Host, strconv.FormatUint(uint64(p.Port), 10), cmp.Or(p.Subset, "-"), string(p.Direction), c.Type, c.Rule}
		}
		t.Rows = append(t.Rows, row)
	}
	if wide {
		addNames(t, len(t.Header), clusterNames(clusters))
	}
	return t
}

func clusterNames(clusters []Cluster) []string {
	names := make([]string, len(clusters))
	for i, c := range clusters {
		names[i] = c.Name
	}
	return names
}

// configName shortens the path of a configuration object in Istio's metadata,
// /apis/<group>/<version>/namespaces/<ns>/<kind>/<name>, to name.namespace.
func configName(path string) string {
	const group = "/apis/networking.istio.io/"
	switch p := strings.Split(path, "/"); {
	case path == "":
		return ""
	case !strings.HasPrefix(path, group):
		return "<unknown>"
	case len(p) == 8:
		return fmt.Sprintf("%s.%s", p[7], p[5])
	}
	return ""
}
