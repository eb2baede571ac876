// Package debug serves what operators and probes read from the control plane:
// readiness, version, metrics, status pages and profiles. Status pages have Istio's
// names and fields where the meaning is the same. They are served over HTTP and xDS.
package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/serving"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Config holds the sources of the pages. All functions are called for each request
// and must be safe from any goroutine.
type Config struct {
	// Proxies returns the connected proxies. Sent returns the last responses to one of
	// them, by its id, by type URL.
	Proxies func() []history.Proxy
	Sent    func(id string) map[string]history.SentConfig
	// Snapshot returns the newest snapshot, nil before the first.
	Snapshot func() *snapshot.Snapshot
	// Rules returns the DestinationRules. May be nil.
	Rules func() *snapshot.Table[string, snapshot.DestinationRule]
	// Omitted returns the endpoints of a service, by its host, that no proxy gets. May be
	// nil.
	Omitted func(host string) facts.Omitted
	// Unreachable returns the networks that other networks cannot reach. May be nil.
	Unreachable func() []facts.UnreachableNetwork
	// Conflicts returns the addresses that two services share. May be nil.
	Conflicts func() []facts.AddressConflict
	// Accepted returns the resources of a type that proxies accepted, by stream.
	Accepted func(typeURL string) map[string][]*xdswire.Resource
	// Versions counts the connected proxies by the version that they report.
	Versions func() map[string]int
	// Hints returns remarks on the configuration for readers of page xds/proxies.
	Hints func() []string
	// Pages are further pages, by name.
	Pages map[string]Page
	// Changes are the pages that PUT changes, by name.
	Changes map[string]Change
	// SystemNamespace is the namespace of the control plane. Its identities read all
	// pages, as do the identities of Namespaces.
	SystemNamespace string
	Namespaces      []string
	// ID and Version identify the control plane over xDS.
	ID      string
	Version any
	// Replica is the name of this control plane.
	Replica string
	Now     func() time.Time
	Log     *slog.Logger
}

// Page is one status page.
type Page struct {
	Help string
	// Open pages are for every identity, limited to its namespace.
	Open bool
	// Make returns the contents, for JSON. An error other than *Error is temporary.
	Make func(ctx context.Context, q Query) (any, error)
}

// Query is the query of a request and the rights of the caller.
type Query struct {
	url.Values
	Rights Rights
}

// Rights limit what a caller reads: everything, or one namespace. The zero Rights
// allow nothing.
type Rights struct {
	All       bool
	Namespace string
}

// operator reports whether the caller has the token of this machine.
func (c Rights) operator() bool { return c.All && c.Namespace == "" }

func (c Rights) sees(p *history.Proxy) bool {
	return c.All || c.Namespace != "" && c.Namespace == p.Node.Namespace
}

// Error is an answer other than a page. The caller reads the text.
type Error struct {
	Status int // of HTTP
	Text   string
}

func (e *Error) Error() string { return e.Text }

// NotFound returns the answer for an unknown name.
func NotFound(format string, args ...any) error {
	return &Error{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

// Texts of Istio that its tools look for.
const (
	NoPage       = "404 page not found"
	NotConnected = "Proxy not connected to this Pilot instance. It may be connected to another instance."
	noProxyID    = "You must provide a proxyID in the query string"
)

// busy bounds the pages that are made at the same time, as some are as large as the
// mesh. Namespaces take turns; each has busyNamespace of them.
const busy, busyNamespace, maxWaiting = 4, 2, 1000

// Pages are the status pages.
type Pages struct {
	cfg   Config
	pages map[string]Page
	turns *serving.Slots
}

// New returns the pages.
func New(cfg Config) *Pages {
	p := &Pages{cfg: cfg, turns: serving.NewSlots(serving.SlotLimits{
		Running: busy, OfSource: busyNamespace, OfPart: busyNamespace, Waiting: maxWaiting, WaitingOfPart: maxWaiting,
	})}
	p.pages = map[string]Page{
		"list":           {Help: "names of all pages", Make: func(context.Context, Query) (any, error) { return p.Names(), nil }},
		"syncz":          {Help: "the state of each proxy and type", Make: p.syncz},
		"adsz":           {Help: "the nodes and watches of all proxies, or of ?proxyID=", Make: p.adsz},
		"connections":    {Help: "the connections", Make: p.connections},
		"registryz":      {Help: "the services", Make: p.ofSnapshot(registryz)},
		"endpointShardz": {Help: "the endpoints by host, namespace and cluster", Make: p.ofSnapshot(endpointShardz)},
		"endpointz":      {Help: "another name of endpointShardz", Make: p.ofSnapshot(endpointShardz)},
		"networkz":       {Help: "the gateways of networks", Make: p.ofSnapshot(func(s *snapshot.Snapshot) any { return networkGateways(s) })},
		"mesh":           {Help: "the fields of MeshConfig that have an effect", Make: p.ofSnapshot(meshConfig)},
		"push_status":    {Help: "clusters without endpoints", Make: p.ofSnapshot(pushStatus)},
		"configz": {Help: "the configuration objects that have an effect, or those in ?namespace=", Make: func(_ context.Context, q Query) (any, error) {
			s, err := p.snapshot()
			if err != nil {
				return nil, err
			}
			var rules *snapshot.Table[string, snapshot.DestinationRule]
			if p.cfg.Rules != nil {
				rules = p.cfg.Rules()
			}
			return configz(s, rules, q.Get("namespace"))
		}},
		"resourcesz":  {Help: "the kinds of configuration objects that are read", Make: func(context.Context, Query) (any, error) { return resourcesz(), nil }},
		"instancesz":  {Help: "the services that lead to each proxy, or to those in ?namespace=, or to ?proxyID=", Make: p.instancesz},
		"sidecarz":    {Help: "the services that ?proxyID= may reach, and the Sidecar that decides it", Make: p.sidecarz},
		"explainz":    {Help: "how the proxies ?proxyID= reach each endpoint of ?service=name.namespace, and why not", Make: p.explainz},
		"policiesz":   {Help: "the security policies that apply to the workload of ?proxyID=, and why", Make: p.policiesz},
		"pushcontext": {Help: "the snapshot that is served", Make: p.ofSnapshot(pushContext)},
		"config_dump": {Help: "the last responses to ?proxyID=, in the form of Envoy's dump; &types=cds,eds… for some types, &include_eds", Open: true, Make: p.configDump},
		"ecdsz":       {Help: "the extensions of ?proxyID=", Make: p.ofType("ecds")},
		"edsz":        {Help: "the endpoints of ?proxyID=", Open: true, Make: p.ofType("eds")},
		"xds/proxies": {Help: "the state of each stream and type, as meshctl proxy-status reads it", Make: p.proxies},
		"ndsz":        {Help: "the name table of ?proxyID=", Open: true, Make: p.ofType("nds")},
	}
	maps.Copy(p.pages, cfg.Pages)
	return p
}

// Names returns the sorted names of all pages except the list.
func (p *Pages) Names() []string {
	names := slices.Sorted(maps.Keys(p.pages))
	return slices.DeleteFunc(names, func(n string) bool { return n == "list" })
}

// RightsOf returns the rights of an identity. Identities of other trust domains have
// none, because their namespaces are not namespaces of the mesh.
func (p *Pages) RightsOf(id mesh.Identity) Rights {
	s := p.cfg.Snapshot()
	if s == nil || id.Namespace == "" || id.TrustDomain != s.Mesh.TrustDomain && !slices.Contains(s.Mesh.Aliases, id.TrustDomain) {
		return Rights{}
	}
	return Rights{
		All:       id.Namespace == p.cfg.SystemNamespace || slices.Contains(p.cfg.Namespaces, id.Namespace),
		Namespace: id.Namespace,
	}
}

// get makes a page.
func (p *Pages) get(ctx context.Context, rights Rights, name string, query url.Values) ([]byte, error) {
	page, ok := p.pages[name]
	switch {
	case !rights.All && (rights.Namespace == "" || !page.Open): // even if there is no such page
		return nil, &Error{http.StatusForbidden, "this page is for identities of the system namespace and of the namespaces of --debug-namespace"}
	case !ok:
		return nil, &Error{http.StatusNotFound, NoPage}
	}
	leave, err := p.turns.Enter(ctx, serving.Caller{Source: rights.Namespace})
	if err != nil {
		return nil, err
	}
	defer leave()
	v, err := page.Make(ctx, Query{query, rights})
	if err != nil {
		return nil, err
	}
	return encode(v, query.Has("pretty"))
}

// encode encodes a page as JSON that is safe to print on a terminal.
func encode(v any, pretty bool) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if pretty {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return output.EscapeJSON(b.Bytes()), nil
}

// proxy returns the proxy that the query names: by the id of its stream, by name and
// namespace, or by a part of them.
func (p *Pages) proxy(q Query) (*history.Proxy, error) {
	name := q.Get("proxyID")
	if name == "" {
		return nil, &Error{http.StatusBadRequest, noProxyID}
	}
	found, err := p.find(q.Rights, name)
	if found == nil && err == nil {
		err = &Error{http.StatusNotFound, NotConnected}
	}
	return found, err
}

// find returns the newest stream of a proxy, nil if the rights include no such proxy.
// It fails if several clusters have a proxy of that name.
func (p *Pages) find(c Rights, name string) (*history.Proxy, error) {
	all := p.visible(c)
	slices.SortStableFunc(all, func(a, b history.Proxy) int { return b.Connected.Compare(a.Connected) })
	for _, is := range []func(*history.Proxy) bool{
		func(x *history.Proxy) bool { return x.ID == name },
		func(x *history.Proxy) bool { return x.Node.ID.ProxyID() == name },
		func(x *history.Proxy) bool { return strings.Contains(x.ID, name) },
	} {
		var found *history.Proxy
		for i := range all {
			x := &all[i]
			switch {
			case !is(x):
			case found == nil:
				found = x
			case x.Node.ID.ProxyID() == name && x.Node.Cluster != found.Node.Cluster:
				return nil, &Error{http.StatusConflict, fmt.Sprintf("%s is in clusters %s and %s: name a stream of one of them, such as %s or %s",
					name, found.Node.Cluster, x.Node.Cluster, found.ID, x.ID)}
			}
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, nil
}

// visible returns the proxies that the rights include, sorted by id.
func (p *Pages) visible(c Rights) []history.Proxy {
	return slices.DeleteFunc(p.cfg.Proxies(), func(x history.Proxy) bool { return !c.sees(&x) })
}

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return http.StatusServiceUnavailable
}
