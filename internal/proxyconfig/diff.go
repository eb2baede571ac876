package proxyconfig

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
)

// comparedType is an xDS type that Envoy dumps.
type comparedType struct {
	section
	name    string // short, such as CDS
	title   string // in plural, for people
	message proto.Message
	// optional reports whether Envoy omits an empty section.
	optional bool
}

// comparedTypes returns the types in the order of display.
func comparedTypes() []*comparedType {
	return []*comparedType{
		{name: "CDS", title: "Clusters", message: (*clusterv3.Cluster)(nil), section: section{
			what: clusterSection.what, typeURL: clusterSection.typeURL,
			paths: map[string][]string{"dynamic_active_clusters": nil, warmingClusters: nil},
		}},
		{name: "LDS", title: "Listeners", message: (*listenerv3.Listener)(nil), section: section{
			what: listenerSection.what, typeURL: listenerSection.typeURL,
			paths: map[string][]string{"dynamic_listeners": nil},
		}},
		{name: "RDS", title: "Routes", message: (*routev3.RouteConfiguration)(nil), optional: true, section: section{
			what: routeSection.what, typeURL: routeSection.typeURL,
			paths: map[string][]string{"dynamic_route_configs": nil},
		}},
		{name: "ECDS", title: "Extensions", message: (*corev3.TypedExtensionConfig)(nil), optional: true, section: section{
			what: extensionSection.what, typeURL: extensionSection.typeURL,
			paths: map[string][]string{"ecds_filters": nil},
		}},
		{name: EDS, title: "Endpoints", message: (*endpointv3.ClusterLoadAssignment)(nil), section: section{
			what: assignmentSection.what, typeURL: assignmentSection.typeURL, why: assignmentSection.why,
			paths: map[string][]string{"dynamic_endpoint_configs": nil},
		}},
	}
}

const warmingClusters = "dynamic_warming_clusters"

// EDS is the type of endpoints. A dump has it only on request.
const EDS = "EDS"

// DynamicTypes returns the types that Envoy dumps, in the order of display.
func DynamicTypes() []string {
	var names []string
	for _, t := range comparedTypes() {
		names = append(names, t.name)
	}
	return names
}

// SentTypes returns the types that both Envoy and a control plane dump as they were sent.
func SentTypes() []string { return []string{"CDS", "LDS", "RDS"} }

// Selection selects the parts of a dump.
type Selection struct {
	Types []string // of DynamicTypes
	// Names are patterns, one of which must match the name of a resource; empty selects
	// all. A star matches any text. A pattern without a star matches any part of a name.
	// Case does not count.
	Names []string
	// Alike replaces addresses of the Envoy itself by texts such as own-ipv4, so that two
	// Envoys compare as equal. It does not change endpoints, as those are addresses of
	// other workloads. Names then match either spelling, on either side.
	Alike bool
}

func (s Selection) types() []*comparedType {
	return slices.DeleteFunc(comparedTypes(), func(t *comparedType) bool { return !slices.Contains(s.Types, t.name) })
}

func (s Selection) matches(name string) bool {
	return len(s.Names) == 0 || slices.ContainsFunc(s.Names, func(p string) bool { return matches(p, name) })
}

// matches reports whether a name matches a pattern of Selection.Names.
func matches(pattern, name string) bool {
	pattern, name = strings.ToLower(pattern), strings.ToLower(name)
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return strings.Contains(name, pattern)
	}
	last := len(parts) - 1
	rest, ok := strings.CutPrefix(name, parts[0])
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(rest, part)
		rest, ok = after, ok && found
	}
	return ok && strings.HasSuffix(rest, parts[last])
}

// Dynamic holds the xDS resources in a config dump of Envoy or of a control plane.
type Dynamic struct {
	// Proxy is the proxy of the dump, name.namespace; empty if the dump has none.
	Proxy string
	// Cluster is the cluster of the proxy; empty if the dump has none.
	Cluster string
	// From names the source of the dump in errors of Compare.
	From string
	// Types are the types that were read.
	Types map[string]DynamicType
	own   []ownAddress
}

// DynamicType holds the resources of one type.
type DynamicType struct {
	resources map[string]resource
	updated   time.Time // the newest; zero when the dump does not say
}

// resource is a resource in use, or one that is not in use yet for the reason in its
// note.
type resource struct {
	name     string         // as it came
	selected bool           // by its name
	raw      jsontext.Value // without spaces; empty when Envoy does not use any yet
	note     string         // what else Envoy says of it, as in Difference
}

// ReadDynamic reads the sections of the selection from a config dump.
func ReadDynamic(r io.Reader, selected Selection) (*Dynamic, error) {
	node := section{
		typeURL: bootstrapSection.typeURL, single: true, paths: map[string][]string{"bootstrap": {"node"}},
	}
	wanted := selected.types()
	sections, types := []*section{&node}, map[*section]*comparedType{}
	out := &Dynamic{Types: map[string]DynamicType{}}
	for _, t := range wanted {
		sections = append(sections, &t.section)
		types[&t.section] = t
		out.Types[t.name] = DynamicType{resources: map[string]resource{}}
	}
	found, err := readSections(r, whatOf(wanted), sections, func(s *section, list string, raw jsontext.Value) error {
		t, ok := types[s]
		switch {
		case !ok:
			return out.itself(raw)
		case selected.Alike && len(out.own) == 0:
			return errors.New("the dump does not say before it what the Envoy's own addresses are, as the bootstrap in a whole dump does")
		}
		return out.add(t, list, raw, selected)
	})
	if err != nil {
		return nil, err
	}
	for _, t := range wanted {
		if !found[&t.section] && !t.optional {
			return nil, t.missing()
		}
	}
	return out, nil
}

// itself reads proxy, cluster and own addresses from the node of the bootstrap.
func (d *Dynamic) itself(raw jsontext.Value) error {
	var node struct {
		ID       string         `json:"id"`
		Metadata jsontext.Value `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &node); err != nil {
		return err
	}
	if n, err := mesh.ParseNodeID(node.ID); err == nil {
		d.Proxy = n.ProxyID()
		d.own = addOwn(d.own, n.IP)
	}
	var metadata struct {
		IPs     textOrNothing `json:"INSTANCE_IPS"`
		Cluster textOrNothing `json:"CLUSTER_ID"`
	}
	_ = json.Unmarshal(node.Metadata, &metadata) // it may hold anything
	d.Cluster = string(metadata.Cluster)
	for text := range strings.SplitSeq(string(metadata.IPs), ",") {
		if ip, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil {
			d.own = addOwn(d.own, ip)
		}
	}
	return nil
}

// whatOf lists types for people, as in clusters, listeners and routes.
func whatOf(types []*comparedType) string {
	var all []string
	for _, t := range types {
		all = append(all, t.what)
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " and " + all[last]
	}
	return strings.Join(all, "")
}

// dynamicItem is an item of any of the lists. Members that a type does not have stay
// empty.
type dynamicItem struct {
	Cluster      jsontext.Value `json:"cluster"`
	RouteConfig  jsontext.Value `json:"route_config,case:ignore"`
	Endpoints    jsontext.Value `json:"endpoint_config,case:ignore"`
	Extension    jsontext.Value `json:"ecds_filter,case:ignore"`
	ActiveState  listenerState  `json:"active_state,case:ignore"`
	WarmingState listenerState  `json:"warming_state,case:ignore"`
	LastUpdated  string         `json:"last_updated,case:ignore"`
	ErrorState   struct {
		Details string `json:"details"`
	} `json:"error_state,case:ignore"`
	Named string `json:"name"` // a listener
}

type listenerState struct {
	Listener    jsontext.Value `json:"listener"`
	LastUpdated string         `json:"last_updated,case:ignore"`
}

// used returns the resource that Envoy uses, for a cluster also one that is warming; nil
// without one.
func (i *dynamicItem) used(t *comparedType) jsontext.Value {
	switch t.name {
	case "CDS":
		return i.Cluster
	case "LDS":
		return i.ActiveState.Listener
	case "RDS":
		return i.RouteConfig
	case EDS:
		return i.Endpoints
	}
	return i.Extension
}

func (d *Dynamic) add(t *comparedType, list string, raw jsontext.Value, selected Selection) error {
	var item dynamicItem
	if err := json.Unmarshal(raw, &item); err != nil {
		return err
	}
	used, updated := item.used(t), item.LastUpdated
	warming := list == warmingClusters
	if t.name == "LDS" {
		updated, warming = item.ActiveState.LastUpdated, item.WarmingState.Listener != nil
	}
	name, err := item.name(used)
	if err != nil {
		return err
	}
	details, shown := item.ErrorState.Details, name
	if selected.Alike && t.name != EDS {
		used, details = alike(used, d.own), string(alike([]byte(details), d.own))
		shown = string(alike([]byte(name), d.own))
	}
	matched := selected.matches(name) || selected.matches(shown)
	if !matched && !selected.Alike { // else the one of the other side may match
		return nil
	}
	all := d.Types[t.name]
	for all.resources[shown].name != "" && all.resources[shown].name != name {
		shown += " (" + name + ")" // two that are alike
	}
	r := all.resources[shown] // a cluster may be in two lists
	r.name, r.selected = name, matched
	if len(used) > 0 && list != warmingClusters {
		if err := used.Compact(); err != nil {
			return err
		}
		r.raw = bytes.Clone(used)
		if at, err := time.Parse(time.RFC3339Nano, updated); err == nil && at.After(all.updated) {
			all.updated = at
		}
	}
	switch {
	case details != "":
		r.note = "refused a version: " + details
	case warming:
		r.note = "is warming a version"
	}
	all.resources[shown] = r
	d.Types[t.name] = all
	return nil
}

// name returns the name of the used resource, or else of the item.
func (i *dynamicItem) name(used jsontext.Value) (string, error) {
	if used == nil {
		return i.Named, nil
	}
	var named struct {
		Name    string `json:"name"`
		Cluster string `json:"cluster_name,case:ignore"` // of endpoints
	}
	err := json.Unmarshal(used, &named)
	return cmp.Or(named.Name, named.Cluster), err
}

// Comparison is the difference between two dumps in one type.
type Comparison struct {
	Type  string `json:"type"` // such as CDS
	Title string `json:"-"`    // such as Clusters
	Names int    `json:"-"`    // how many there are, on both sides together
	// Match reports that there is no difference.
	Match       bool         `json:"match"`
	A           Holding      `json:"a"`
	B           Holding      `json:"b"`
	Differences []Difference `json:"differences"`
}

// Holding counts the resources of one side in a type.
type Holding struct {
	Count int `json:"count"` // of resources
	// Updated is the time of the last update; zero if the dump has none.
	Updated time.Time `json:"updated,omitzero"`
}

// Difference is a resource that differs between the two sides.
type Difference struct {
	Name string `json:"name"`
	Only Side   `json:"only,omitzero"` // the side that has it alone; empty for both
	// NoteA and NoteB are the remarks of the Envoys about the resource, each a sentence
	// without subject, such as: refused a version: it has no name.
	NoteA string `json:"noteA,omitzero"`
	NoteB string `json:"noteB,omitzero"`
	// Noted reports that only the notes differ.
	Noted bool `json:"-"`
	// Redacted reports that only redacted values differ.
	Redacted bool `json:"redacted,omitzero"`
	// Diff is a unified diff without a header, from A to B. It is empty if only one side
	// has the resource, or if only redacted values or notes differ.
	Diff string `json:"diff,omitzero"`
}

// Side is one of the two sides of a comparison.
type Side string

// The sides.
const (
	A Side = "a"
	B Side = "b"
)

// Compare compares two dumps, type by type, until ctx ends.
func Compare(ctx context.Context, a, b *Dynamic, types []string) ([]Comparison, error) {
	c := comparer{from: [2]string{a.From, b.From}, lists: unordered()}
	var out []Comparison
	for _, t := range (Selection{Types: types}).types() {
		compared, err := c.compareType(ctx, t, a.Types[t.name], b.Types[t.name])
		if err != nil {
			return nil, err
		}
		out = append(out, compared)
	}
	return out, nil
}

func (c *comparer) compareType(ctx context.Context, t *comparedType, a, b DynamicType) (Comparison, error) {
	out := Comparison{Type: t.name, Title: t.title, Differences: []Difference{}}
	out.A.Updated, out.B.Updated = a.updated, b.updated
	names := slices.AppendSeq(slices.Collect(maps.Keys(a.resources)), maps.Keys(b.resources))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		x, inA := a.resources[name]
		y, inB := b.resources[name]
		if !x.selected && !y.selected {
			continue
		}
		out.Names++
		usedA, usedB := len(x.raw) > 0, len(y.raw) > 0
		if usedA {
			out.A.Count++
		}
		if usedB {
			out.B.Count++
		}
		d := Difference{Name: name, NoteA: x.note, NoteB: y.note, Noted: usedA == usedB}
		switch {
		case !inB, usedA && !usedB:
			d.Only = A
		case !inA, usedB && !usedA:
			d.Only = B
		case usedA:
			var err error
			if d.Diff, d.Redacted, err = c.compare([2]jsontext.Value{x.raw, y.raw}, t.message); err != nil {
				return out, fmt.Errorf("%s %q: %w", t.what, name, err)
			}
			d.Noted = d.Diff == "" && !d.Redacted
		}
		if d.Noted && d.Only == "" && x.note == y.note {
			continue
		}
		out.Differences = append(out.Differences, d)
	}
	out.Match = len(out.Differences) == 0
	return out, nil
}

// Only counts the resources that only one side has.
func (c Comparison) Only(side Side) (n int) {
	for _, d := range c.Differences {
		if d.Only == side {
			n++
		}
	}
	return n
}

// String returns the counts for people.
func (c Comparison) String() string {
	return fmt.Sprintf("%s: %d of %d differ", c.Type, len(c.Differences), c.Names)
}
