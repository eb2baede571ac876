package proxyconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/output"
)

// Overview holds the rows of a whole config dump.
type Overview struct {
	Bootstrap   Bootstrap // without Resource
	Clusters    []Cluster
	Listeners   []Listener
	Routes      []Route
	Secrets     []Secret // as in Secrets.Items
	Assignments []Assignment
	// Filters are the filters of all listeners.
	Filters *Filters
	// Missing are the sections that the dump does not have.
	Missing []*MissingError
}

// OverviewFilter selects the rows of an Overview; zero fields select all.
type OverviewFilter struct {
	// Clusters selects clusters, and endpoints by their cluster.
	Clusters ClusterFilter
	// Listeners selects listeners. Its address also selects endpoints.
	Listeners ListenerFilter
	Routes    RouteFilter
}

// overviewWhat names the contents of an overview in errors.
const overviewWhat = "clusters, listeners, routes, secrets and endpoint assignments"

var errNothing = errors.New("config dump has no configuration of a type that is shown")

// ReadOverview reads a config dump once. Missing sections are an error only if all are
// missing.
func ReadOverview(r io.Reader, f OverviewFilter) (*Overview, error) {
	o, secrets := &Overview{Filters: newFilters()}, new(Secrets)
	endpoints := EndpointFilter{Address: f.Listeners.Address}
	sections := []*section{&bootstrapSection, &clusterSection, &listenerSection, &routeSection, &secretSection, &assignmentSection}
	read := append(slices.Clip(sections), &extensionSection)
	found, err := readSections(r, overviewWhat, read, func(s *section, list string, raw jsontext.Value) (err error) {
		if err := o.Filters.add(s, list, raw); err != nil {
			return err
		}
		switch s {
		case &bootstrapSection:
			return o.Bootstrap.readVersions(list, raw)
		case &clusterSection:
			o.Clusters, err = appendCluster(o.Clusters, list, raw, &f.Clusters, false)
		case &listenerSection:
			o.Listeners, err = appendListeners(o.Listeners, list, raw, &f.Listeners, false)
		case &routeSection:
			o.Routes, err = appendRoute(o.Routes, list, raw, &f.Routes, false)
		case &secretSection:
			return secrets.add(list, raw)
		case &assignmentSection:
			o.Assignments, err = appendAssignment(o.Assignments, raw, f.Clusters.matches, &endpoints, false)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, s := range sections {
		if !found[s] {
			o.Missing = append(o.Missing, s.missing())
		}
	}
	if len(o.Missing) == len(sections) {
		return nil, errNothing
	}
	secrets.sort()
	o.Secrets = secrets.Items
	slices.SortStableFunc(o.Clusters, compareClusters)
	slices.SortStableFunc(o.Listeners, compareListeners)
	o.Listeners = withoutRepeats(o.Listeners)
	slices.SortStableFunc(o.Routes, compareRoutes)
	slices.SortStableFunc(o.Assignments, compareAssignments)
	return o, nil
}

// Part is one table of an overview.
type Part struct {
	Title string // as Istio has it, such as CLUSTER
	Table *output.Table
}

// Parts returns an overview as Istio's tables. The first cell of each row begins with its
// kind: cluster/…, listener/….
func (o *Overview) Parts(verbose bool, now time.Time) []Part {
	clusters, listeners := ClusterTable(o.Clusters, false), ListenerTable(o.Listeners, verbose, false)
	addNames(clusters, 0, clusterNames(o.Clusters))
	addNames(listeners, 0, listenerNames(o.Listeners, verbose))
	return []Part{
		{"BOOTSTRAP", BootstrapTable(&o.Bootstrap)},
		{"CLUSTER", prefixed("cluster/", clusters)},
		{"LISTENER", prefixed("listener/", listeners)},
		{"ROUTE", prefixed("route/", RouteTable(o.Routes, verbose))},
		{"SECRET", prefixed("secret/", SecretTable(o.Secrets, now))},
		{"ENDPOINTS", prefixed("endpoint/", AssignmentTable(o.Assignments, false))},
	}
}

// prefixed adds a prefix to the first cell of each row.
func prefixed(prefix string, t *output.Table) *output.Table {
	for _, row := range t.Rows {
		row[0] = prefix + row[0]
	}
	return t
}

// DumpResource is the JSON form of a whole config dump.
type DumpResource struct {
	Configs jsontext.Value `json:"configs"`
}

// ReadDump returns a whole config dump as proto JSON, with secrets redacted in all types.
// It holds the dump once, without white space.
func ReadDump(r io.Reader) (*DumpResource, error) {
	d := newDump(r)
	var out bytes.Buffer
	c := converter{d: d.Decoder, e: jsontext.NewEncoder(&out, jsontext.AllowDuplicateNames(true))}
	configs := (*adminv3.ConfigDump)(nil).ProtoReflect().Descriptor().Fields().ByName(configDumpMember)
	err := d.document(overviewWhat, configDumpMember, func() error {
		if kind := d.PeekKind(); kind != jsontext.KindBeginArray && kind != jsontext.KindInvalid {
			return fmt.Errorf("/%s is %s, want an array", configDumpMember, kindName(kind))
		}
		return c.field(configs, false)
	})
	switch {
	case err != nil:
		return nil, err
	case out.Len() == 0:
		return nil, errNothing
	}
	return &DumpResource{bytes.TrimRight(out.Bytes(), "\n")}, nil
}
