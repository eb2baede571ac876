package proxyconfig

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// comparedType is a type that both a control plane and Envoy dump as it was sent.
// Endpoints are none: Envoy dumps what it made of them.
type comparedType struct {
	section
	name    string // short, such as CDS
	message proto.Message
	// optional says that Envoy leaves the section out when it is empty.
	optional bool
}

// comparedTypes are in the order in which Istio's tools show them.
func comparedTypes() []*comparedType {
	return []*comparedType{
		{name: "CDS", message: (*clusterv3.Cluster)(nil), section: section{
			what: clusterSection.what, typeURL: clusterSection.typeURL,
			paths: map[string][]string{"dynamic_active_clusters": nil, warmingClusters: nil},
		}},
		{name: "LDS", message: (*listenerv3.Listener)(nil), section: section{
			what: listenerSection.what, typeURL: listenerSection.typeURL,
			paths: map[string][]string{"dynamic_listeners": nil},
		}},
		{name: "RDS", message: (*routev3.RouteConfiguration)(nil), optional: true, section: section{
			what: routeSection.what, typeURL: routeSection.typeURL,
			paths: map[string][]string{"dynamic_route_configs": nil},
		}},
	}
}

const warmingClusters = "dynamic_warming_clusters"

// Dynamic is what a config dump, of Envoy or of a control plane, holds of what
// came over xDS.
type Dynamic struct {
	// Proxy is whose Envoy it is, name.namespace; empty when the dump does not say.
	Proxy string
	// Types are CDS, LDS and RDS.
	Types map[string]DynamicType
}

// DynamicType is what there is of one type.
type DynamicType struct {
	resources map[string]resource
	updated   time.Time // the newest; zero when the dump does not say
}

// resource is one in use, or one that is not yet, as its note says.
type resource struct {
	text string // JSON in lines; empty when Envoy does not use any yet
	note string // what else Envoy says of it
}

// ReadDynamic reads a whole config dump.
func ReadDynamic(r io.Reader) (*Dynamic, error) {
	node := section{
		typeURL: "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", single: true,
		paths: map[string][]string{"bootstrap": {"node", "id"}},
	}
	all := comparedTypes()
	sections, types := []*section{&node}, map[*section]*comparedType{}
	out := &Dynamic{Types: map[string]DynamicType{}}
	for _, t := range all {
		sections = append(sections, &t.section)
		types[&t.section] = t
		out.Types[t.name] = DynamicType{resources: map[string]resource{}}
	}
	found, err := readSections(r, "clusters, listeners and routes", sections, func(s *section, list string, raw jsontext.Value) error {
		if t, ok := types[s]; ok {
			return out.add(t, list, raw)
		}
		var id string
		if err := json.Unmarshal(raw, &id); err != nil {
			return err
		}
		if n, err := mesh.ParseNodeID(id); err == nil {
			out.Proxy = n.ProxyID()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if !found[&t.section] && !t.optional {
			return nil, t.missing()
		}
	}
	return out, nil
}

// dynamicItem is an item of the lists that are read. What the types have not is
// empty.
type dynamicItem struct {
	Cluster      jsontext.Value `json:"cluster"`
	RouteConfig  jsontext.Value `json:"route_config,case:ignore"`
	ActiveState  listenerState  `json:"active_state,case:ignore"`
	WarmingState listenerState  `json:"warming_state,case:ignore"`
	LastUpdated  string         `json:"last_updated,case:ignore"`
	ErrorState   struct {
		Details string `json:"details"`
	} `json:"error_state,case:ignore"`
	Name string `json:"name"` // of a listener
}

type listenerState struct {
	Listener    jsontext.Value `json:"listener"`
	LastUpdated string         `json:"last_updated,case:ignore"`
}

func (d *Dynamic) add(t *comparedType, list string, raw jsontext.Value) error {
	var item dynamicItem
	if err := json.Unmarshal(raw, &item); err != nil {
		return err
	}
	used, updated := item.Cluster, item.LastUpdated
	warming := list == warmingClusters
	switch t.name {
	case "LDS":
		used, updated = item.ActiveState.Listener, item.ActiveState.LastUpdated
		warming = item.WarmingState.Listener != nil
	case "RDS":
		used = item.RouteConfig
	}
	name := item.Name
	if used != nil {
		var named struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(used, &named); err != nil {
			return err
		}
		name = named.Name
	}
	all := d.Types[t.name]
	r := all.resources[name] // a cluster may be in two lists
	if used != nil && list != warmingClusters {
		var err error
		if r.text, err = comparedText(used, t.message); err != nil {
			return err
		}
		if at, err := time.Parse(time.RFC3339Nano, updated); err == nil && at.After(all.updated) {
			all.updated = at
		}
	}
	switch {
	case item.ErrorState.Details != "":
		r.note = "Envoy refused a version: " + item.ErrorState.Details
	case warming:
		r.note = "Envoy is warming a version"
	}
	all.resources[name] = r
	d.Types[t.name] = all
	return nil
}

// comparedText writes a resource so that what means the same is the same text,
// whoever printed it: proto JSON in lines, with what is sensitive redacted. What
// this build does not know is compared as it came.
func comparedText(raw jsontext.Value, of proto.Message) (string, error) {
	value, err := protoJSON(raw, of)
	if err != nil {
		return "", err
	}
	var message anypb.Any
	if err := protojson.Unmarshal(value, &message); err == nil {
		if known, err := protojson.Marshal(&message); err == nil {
			value = known
		}
	} else if err := value.Canonicalize(); err != nil {
		return "", err
	}
	if err := value.Indent(jsontext.WithIndent("  ")); err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(value)), nil
}

// Comparison is how what Envoy holds of a type differs from what it was sent.
type Comparison struct {
	Type string `json:"type"` // CDS, LDS or RDS
	// Match says that there is no difference.
	Match bool `json:"match"`
	// Sent and Held count resources.
	Sent int `json:"sent"`
	Held int `json:"held"`
	// Updated is when Envoy last took one of them over; zero when it has none.
	Updated     time.Time    `json:"updated,omitzero"`
	Differences []Difference `json:"differences"`
}

// Difference is a resource that is not the same on both sides.
type Difference struct {
	Name string `json:"name"`
	Only Side   `json:"only,omitzero"` // the side that has it alone; empty for both
	// Note is what Envoy says of the resource, such as why it refused a version.
	Note string `json:"note,omitzero"`
	// Diff is a unified diff without a header, from what was sent to what is held;
	// empty when only one side has the resource.
	Diff string `json:"diff,omitzero"`
}

// Side is one of two that are compared.
type Side string

// The sides.
const (
	Sent Side = "sent"
	Held Side = "held"
)

// Compare compares what a control plane sent with what Envoy holds, type by type.
func Compare(sent, held *Dynamic) []Comparison {
	var out []Comparison
	for _, t := range comparedTypes() {
		a, b := sent.Types[t.name], held.Types[t.name]
		c := Comparison{Type: t.name, Updated: b.updated, Differences: []Difference{}}
		names := slices.Sorted(maps.Keys(a.resources))
		for name := range b.resources {
			if _, ok := a.resources[name]; !ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			x, y := a.resources[name], b.resources[name]
			if x.text != "" {
				c.Sent++
			}
			if y.text != "" {
				c.Held++
			}
			if x.text == y.text {
				continue
			}
			d := Difference{Name: name, Note: y.note}
			switch {
			case y.text == "":
				d.Only = Sent
			case x.text == "":
				d.Only = Held
			default:
				d.Diff = output.UnifiedDiff(x.text, y.text)
			}
			c.Differences = append(c.Differences, d)
		}
		c.Match = len(c.Differences) == 0
		out = append(out, c)
	}
	return out
}

// String counts the differences, for people.
func (c Comparison) String() string {
	return fmt.Sprintf("%s: %d of %d differ", c.Type, len(c.Differences), max(c.Sent, c.Held))
}
