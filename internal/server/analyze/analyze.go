// Package analyze finds faults that only several objects of a mesh together show, such
// as references to objects that do not exist, and conflicts. It also turns the problems
// that sources and the registry report into findings, so that every fault of a mesh has a
// code, a severity and a place.
//
// The checks are pure functions of the contents of the registry. Each file holds the checks
// of one subject, and codes.go the codes.
package analyze

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Finding is one fault.
type Finding struct {
	Code codes.Code
	// Object is the object at fault. It is zero for a fault of the whole mesh or of a file.
	Object snapshot.Key
	// Place is the file and line of the object or, if Exact, of the fault.
	Place snapshot.Place
	Exact bool
	// Field is the path of the faulty field, such as spec.gateways[0], or "".
	Field string
	// Message states the fault, without the field.
	Message string
	// Fix is a command that mends the fault, or "".
	Fix string
	// Level replaces the level of the code, unless it is "".
	Level codes.Level
	// Logged is set if the registry logs the fault.
	Logged bool

	suppress string // see snapshot.Meta
}

// Severity returns the level of the finding.
func (f *Finding) Severity() codes.Level { return cmp.Or(f.Level, codes.KindOf(f.Code).Level) }

// Options configures Check.
type Options struct {
	// Now is the time at which certificates are checked.
	Now time.Time
	// SecretsRead reports whether the Secrets of a namespace are known. Nil means all.
	SecretsRead func(namespace string) bool
	// Credential returns a Secret that a Gateway names, if these Secrets were read one by one; known is
	// false if it could not be read. Nil means that SecretsRead decides.
	Credential func(snapshot.Key) (secret *snapshot.Secret, known bool)
	// MayNotRead returns why the control plane gives an account no private keys, "" if it gives them or
	// if that is not known. Nil means that it is not known.
	MayNotRead func(snapshot.Account) string
	// KeySet returns why the control planes of a cluster cannot fetch a key set, "" if they can, and
	// whether they still use its last keys. Nil means that it is not known.
	KeySet func(mesh.ClusterID, snapshot.KeySource) (fault string, kept bool)
	// Whole reports whether everything of a cluster is known, as from its API. Nil means that
	// objects may be missing, as in a directory.
	Whole func(mesh.ClusterID) bool
	// Flags returns the flags by which commands of kubectl and meshctl reach a cluster, such as
	// "--context east"; --context is the last one. Nil means none.
	Flags func(mesh.ClusterID) string
	// Unread lists clusters of the mesh that were not read.
	Unread []mesh.ClusterID
	// Links returns the clusters that the remote secrets of a cluster name, or nil if the remote
	// secrets are not known.
	Links func(mesh.ClusterID) []mesh.ClusterID
	// Ended, if not nil, makes the checks end early, with the findings so far.
	Ended func() bool
}

// Check returns the faults between the objects of a mesh, sorted, without those that the
// objects suppress.
func Check(c *registry.Contents, o Options) []Finding {
	m := newChecker(c, o)
	for _, check := range until(m, []func(){
		m.problems, m.virtualServices, m.gateways, m.destinationRules, m.sidecars, m.policies, m.keySets, m.serverModes, m.relativePatches,
		m.telemetryProviders, m.kubernetesServices, m.serviceEntries, m.namespaces, m.sourceAccounts, m.tokenIssuers, m.networks, m.injection,
	}) {
		check()
	}
	m.weakenUnsure()
	m.countLeftOut()
	return Sort(m.found)
}

// where limits a statement to the only cluster that was read, if it was the only one.
func (m *checker) where() string {
	if len(m.clusters) > 1 {
		return ""
	}
	return " in this cluster"
}

// weakenUnsure lowers the level of the findings that pods and Services in other clusters, which were
// not read, may refute.
func (m *checker) weakenUnsure() {
	if len(m.Unread) == 0 {
		return
	}
	var names []string
	for _, id := range m.Unread {
		names = append(names, string(id))
	}
	for i := range m.found {
		f := &m.found[i]
		if f.Level == codes.Info {
			continue
		}
		switch f.Code {
		case codes.ReferencedResourceNotFound:
			if !strings.HasSuffix(f.Field, ".host") {
				continue
			}
		case codes.DestinationRuleSubsetNotSelectPods, codes.UnknownDestinationRuleHost, codes.ServiceWithoutEndpoints, codes.HostWithoutService, codes.SidecarHostWithoutService:
		default:
			continue
		}
		f.Message += ", unless it is in cluster " + listed(names) + ", which was not read"
		f.Level = codes.Info
	}
}

// countLeftOut adds a finding for each namespace with more findings than the limit.
func (m *checker) countLeftOut() {
	for ns, n := range m.foundIn {
		if more := n - maxFindings; more > 0 && ns != "" {
			m.found = append(m.found, Finding{
				Code: codes.NoEffect, Object: snapshot.Key{Namespace: ns},
				Message: fmt.Sprintf("the namespace has more than %d findings: the other %d are left out", maxFindings, more),
			})
		}
	}
}

// Sort returns the findings in order, each once, without those that the objects suppress.
func Sort(findings []Finding) []Finding {
	findings = slices.DeleteFunc(findings, func(f Finding) bool { return suppresses(f.suppress, f.Code) })
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Place.File, b.Place.File), cmp.Compare(a.Place.Line, b.Place.Line), compareObjects(a.Object, b.Object),
			cmp.Compare(a.Code, b.Code), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(findings)
}

// suppresses reports whether a list of codes, separated by commas, contains a code or "*".
func suppresses(codes string, code codes.Code) bool {
	for c := range strings.SplitSeq(codes, ",") {
		if c = strings.TrimSpace(c); c == "*" || strings.EqualFold(c, string(code)) {
			return true
		}
	}
	return false
}

func compareObjects(a, b snapshot.Key) int {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// checker holds the contents of the registry, and indexes for the checks.
type checker struct {
	*registry.Contents
	Options
	objects map[snapshot.Key]snapshot.Object
	// workloads holds the pods and the workloads of WorkloadEntries by namespace.
	workloads map[string][]*snapshot.Pod
	// services holds the Services of Kubernetes by namespace.
	services map[string][]*snapshot.Service
	// labelled holds the workloads with a label, and selecting the Services of Kubernetes
	// whose first label it is.
	labelled  map[label][]*snapshot.Pod
	selecting map[label][]*snapshot.Service
	virtual   []*snapshot.VirtualService
	rules     []*snapshot.DestinationRule
	entries   []*snapshot.ServiceEntry
	clusters  map[mesh.ClusterID]bool
	servers   map[*snapshot.Pod][]snapshot.GatewayServer // of gatewayServers, nil before
	// wildcards holds the hosts of services that begin with "*".
	wildcards []string
	// entriesOf holds the ServiceEntries with a host by namespace/host.
	entriesOf map[string][]*snapshot.ServiceEntry
	// elsewhere holds the other clusters that have a control plane of their own.
	elsewhere map[mesh.ClusterID]bool
	found     []Finding
	foundIn   map[string]int // number of findings by namespace
	// hostsBelow holds the first labels of the hosts of services by the rest of the host, and domainsOf
	// the reverse. unserved holds the DestinationRules without a service by the host that was probably
	// meant, and lost the VirtualServices whose requests fail because of one. Nil before they are needed.
	hostsBelow, domainsOf map[string][]string
	unserved              map[string][]*snapshot.DestinationRule
	lost                  map[*snapshot.DestinationRule][]string
}

// maxFindings bounds the findings about the objects of a namespace.
const maxFindings = 10_000

func newChecker(c *registry.Contents, o Options) *checker {
	m := &checker{
		Contents: c, Options: o, objects: make(map[snapshot.Key]snapshot.Object), workloads: make(map[string][]*snapshot.Pod),
		services: make(map[string][]*snapshot.Service), clusters: make(map[mesh.ClusterID]bool),
		labelled: make(map[label][]*snapshot.Pod), selecting: make(map[label][]*snapshot.Service),
		entriesOf: make(map[string][]*snapshot.ServiceEntry), foundIn: make(map[string]int),
		elsewhere: make(map[mesh.ClusterID]bool),
	}
	for _, kind := range slices.Sorted(maps.Keys(c.Objects)) {
		for _, object := range c.Objects[kind] {
			key := object.Key()
			m.objects[key], m.clusters[key.Cluster] = object, true
			switch o := object.(type) {
			case *snapshot.Pod:
				m.addWorkload(o)
			case *snapshot.WorkloadEntry:
				m.addWorkload(&o.Pod)
			case *snapshot.Service:
				m.services[o.Namespace] = append(m.services[o.Namespace], o)
				if o.Cluster != c.Snapshot.Mesh.LocalCluster && len(o.Selector) > 0 && snapshot.IsControlPlane(o.Namespace, o.Name, c.Snapshot.Mesh.RootNamespace) {
					m.elsewhere[o.Cluster] = true
				}
				if len(o.Selector) > 0 {
					l := firstLabel(o.Namespace, o.Selector)
					m.selecting[l] = append(m.selecting[l], o)
				}
			case *snapshot.VirtualService:
				m.virtual = append(m.virtual, o)
			case *snapshot.DestinationRule:
				m.rules = append(m.rules, o)
			case *snapshot.ServiceEntry:
				m.entries = append(m.entries, o)
				for _, host := range o.Hosts {
					m.entriesOf[o.Namespace+"/"+host] = append(m.entriesOf[o.Namespace+"/"+host], o)
				}
			}
		}
	}
	for id := range c.Snapshot.Networks.All() {
		m.clusters[id] = true
	}
	for _, svc := range c.Snapshot.Services.All() {
		if svc.IsWildcard() {
			m.wildcards = append(m.wildcards, svc.Host)
		}
	}
	return m
}

// until iterates over a list, as long as the checks are not to end.
func until[T any](m *checker, list []T) iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for i, item := range list {
			if m.Ended != nil && m.Ended() || !yield(i, item) {
				return
			}
		}
	}
}

// label is a label of an object in a namespace.
type label struct{ namespace, key, value string }

// firstLabel returns one of the labels, always the same one.
func firstLabel(namespace string, labels map[string]string) label {
	key := slices.Min(slices.Collect(maps.Keys(labels)))
	return label{namespace, key, labels[key]}
}

func (m *checker) addWorkload(w *snapshot.Pod) {
	m.workloads[w.Namespace] = append(m.workloads[w.Namespace], w)
	for k, v := range w.Labels {
		l := label{w.Namespace, k, v}
		m.labelled[l] = append(m.labelled[l], w)
	}
}

// find adds a finding about an object.
func (m *checker) find(code codes.Code, object snapshot.Object, field, format string, args ...any) {
	m.findKey(code, object.Key(), field, fmt.Sprintf(format, args...))
}

// findFix is find with the command that mends the fault. It returns the finding, or nil beyond the
// limit.
func (m *checker) findFix(code codes.Code, object snapshot.Object, fix, field, format string, args ...any) *Finding {
	return m.findKeyFix(code, object.Key(), fix, field, fmt.Sprintf(format, args...))
}

// findExtra is find for a field that is better removed.
func (m *checker) findExtra(code codes.Code, object snapshot.Object, field, format string, args ...any) {
	m.findFix(code, object, m.remove(object, field), field, format, args...)
}

// findIn is findFix with a level of its own, unless that is empty.
func (m *checker) findIn(level codes.Level, code codes.Code, object snapshot.Object, fix, field, format string, args ...any) {
	if f := m.findFix(code, object, fix, field, format, args...); f != nil {
		f.Level = level
	}
}

// findKeyFix is findKey with the command that mends the fault.
func (m *checker) findKeyFix(code codes.Code, key snapshot.Key, fix, field, message string) *Finding {
	f := m.findKey(code, key, field, message)
	if f != nil {
		f.Fix = fix
	}
	return f
}

// findKey is find for an object that may not be known, or for the whole mesh. It returns the finding,
// or nil beyond the limit.
func (m *checker) findKey(code codes.Code, key snapshot.Key, field, message string) *Finding {
	if m.foundIn[key.Namespace]++; m.foundIn[key.Namespace] > maxFindings && key.Namespace != "" {
		return nil
	}
	f := Finding{Code: code, Object: key, Field: field, Message: message}
	if object := m.objects[key]; object != nil {
		f.Place = object.ReadFrom()
		if meta, ok := object.(interface{ Info() *snapshot.Meta }); ok {
			f.suppress = meta.Info().Suppress
		}
	}
	m.found = append(m.found, f)
	return &m.found[len(m.found)-1]
}

// list returns the objects of a kind.
func list[O snapshot.Object](m *checker, kind snapshot.Kind) []O {
	out := make([]O, 0, len(m.Objects[kind]))
	for _, object := range m.Objects[kind] {
		if o, ok := object.(O); ok {
			out = append(out, o)
		}
	}
	return out
}

// selected returns the workloads in a namespace, or in all if it is "", that a selector
// selects.
func (m *checker) selected(namespace string, selector map[string]string) []*snapshot.Pod {
	var out []*snapshot.Pod
	in := func(ns string) {
		all := m.workloads[ns]
		if len(selector) > 0 {
			all = m.labelled[firstLabel(ns, selector)]
		}
		for _, w := range all {
			if snapshot.Selects(selector, w.Labels) {
				out = append(out, w)
			}
		}
	}
	if namespace != "" {
		in(namespace)
	} else {
		for _, ns := range slices.Sorted(maps.Keys(m.workloads)) {
			in(ns)
		}
	}
	return out
}

// service returns the service of a host that a namespace sees, or nil. It follows
// ExternalName services.
func (m *checker) service(host, namespace string) *snapshot.MeshService {
	services := m.Snapshot.Services
	svc := services.Get(host)
	if svc != nil && svc.ExternalName != "" && services.Get(svc.ExternalName) != nil {
		svc = services.Get(svc.ExternalName)
	}
	if svc == nil || svc.VisibleTo(namespace) {
		return svc
	}
	for _, r := range svc.Rivals {
		if other := services.Get(host + "/" + r.Namespace); other != nil && other.VisibleTo(namespace) {
			return other
		}
	}
	return nil
}

// served reports whether a service has the host, or a wildcard that matches it. host may be
// a wildcard itself, which then must match a service.
func (m *checker) served(host string) bool {
	if m.Snapshot.Services.Get(host) != nil {
		return true
	}
	for i := range m.wildcards {
		if snapshot.HostsOverlap(m.wildcards[i], host) {
			return true
		}
	}
	if !strings.HasPrefix(host, "*") {
		return false
	}
	for _, svc := range m.Snapshot.Services.All() {
		if snapshot.HostsOverlap(host, svc.Host) {
			return true
		}
	}
	return false
}

// nameOf returns namespace/name of an object.
func nameOf(o snapshot.Object) string {
	k := o.Key()
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// labelText returns labels as kubectl prints them.
func labelText(labels map[string]string) string { return string(snapshot.SelectorOf(labels)) }

func at(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

// listed joins names, at most eight of them.
func listed(names []string) string {
	const most = 8
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
