package proxyconfig

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/output"
)

// Listener is one listener of a proxy.
type Listener struct {
	Name string
	// Addresses are the first address and the additional ones, without ports.
	Addresses []string
	// Port is the port of the first address, 0 if it has none.
	Port   uint32
	Type   ListenerType
	Chains []Chain
	State  ListenerState
	Resource
}

// ListenerState is the state of a listener. Envoy may have several listeners of a name, each in
// another state.
type ListenerState string

// The states of listeners.
const (
	ListenerActive   ListenerState = ""
	ListenerWarming  ListenerState = "warming"  // it waits for its configuration
	ListenerDraining ListenerState = "draining" // it only keeps its connections
	ListenerRejected ListenerState = "rejected" // Envoy refused it
)

// Chain is the match and the destination of one filter chain.
type Chain struct{ Match, Destination string }

// ListenerType is the protocol of the filter chains of a listener.
type ListenerType string

// The types of listeners.
const (
	ListenerHTTP    ListenerType = "HTTP"
	ListenerTCP     ListenerType = "TCP"
	ListenerHTTPTCP ListenerType = "HTTP+TCP"
	ListenerUDP     ListenerType = "UDP"
	ListenerUnknown ListenerType = "UNKNOWN"
)

// ListenerFilter selects listeners; zero fields select all.
type ListenerFilter struct {
	// Address matches any address, ignoring case.
	Address string
	Port    uint32
	// Type matches ignoring case.
	Type ListenerType
	Seen *Seen
}

func (f *ListenerFilter) matches(l *Listener) bool {
	return (f.Port == 0 || f.Port == l.Port) &&
		matchesFold(string(f.Type), string(l.Type)) &&
		(f.Address == "" || slices.ContainsFunc(l.Addresses, func(a string) bool { return strings.EqualFold(a, strings.TrimPrefix(f.Address, unixPrefix)) }))
}

var listenerSection = section{
	what:    "listeners",
	typeURL: "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
	paths: map[string][]string{
		"dynamic_listeners": {}, // see listenersOf
		"static_listeners":  {"listener"},
	},
}

// listenerIn is a listener of a dump in one of its states.
type listenerIn struct {
	raw     jsontext.Value // nil if it is not known
	state   ListenerState
	name    string
	details string // why it was rejected
}

// listenersOf returns the listeners of an item of a list: one for each state of a dynamic listener.
func listenersOf(list string, raw jsontext.Value) ([]listenerIn, error) {
	if list != "dynamic_listeners" {
		return []listenerIn{{raw: raw}}, nil
	}
	type state struct {
		Listener jsontext.Value `json:"listener"`
	}
	var d struct {
		Name     string `json:"name"`
		Active   state  `json:"active_state,case:ignore"`
		Warming  state  `json:"warming_state,case:ignore"`
		Draining state  `json:"draining_state,case:ignore"`
		Error    *struct {
			Failed  jsontext.Value `json:"failed_configuration,case:ignore"`
			Details string         `json:"details"`
		} `json:"error_state,case:ignore"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, err
	}
	var out []listenerIn
	for _, s := range []struct {
		state
		ListenerState
	}{{d.Active, ListenerActive}, {d.Warming, ListenerWarming}, {d.Draining, ListenerDraining}} {
		if s.Listener != nil {
			out = append(out, listenerIn{s.Listener, s.ListenerState, d.Name, ""})
		}
	}
	if d.Error != nil {
		out = append(out, listenerIn{d.Error.Failed, ListenerRejected, d.Name, d.Error.Details})
	}
	return out, nil
}

// ReadListeners reads a config dump and returns the listeners that the filter selects, sorted by
// port, address, type and state. With resources, each active and static one has its JSON. A dump
// without any listener is an error.
func ReadListeners(r io.Reader, f ListenerFilter, resources bool) ([]Listener, error) {
	rows, err := readRows(r, &listenerSection, compareListeners, func(rows []Listener, list string, raw jsontext.Value) ([]Listener, error) {
		return appendListeners(rows, list, raw, &f, resources)
	})
	return withoutRepeats(rows), err
}

// withoutRepeats removes repeated rejected listeners, of which Envoy may have one for each attempt.
func withoutRepeats(sorted []Listener) []Listener {
	return slices.CompactFunc(sorted, func(a, b Listener) bool {
		return a.State == ListenerRejected && b.State == ListenerRejected && a.Name == b.Name && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Chains, b.Chains)
	})
}

func appendListeners(to []Listener, list string, raw jsontext.Value, f *ListenerFilter, resources bool) ([]Listener, error) {
	all, err := listenersOf(list, raw)
	if err != nil {
		return to, err
	}
	for _, in := range all {
		m := new(listenerv3.Listener)
		if in.raw != nil {
			if err := decode(in.raw, m); err != nil {
				return to, err
			}
		}
		m.Name = cmp.Or(m.GetName(), in.name)
		l := NewListener(m)
		if l.State = in.state; in.state == ListenerRejected {
			l.Chains = []Chain{{"-", strings.Join(strings.Fields(in.details), " ")}}
		}
		f.Seen.add()
		if !f.matches(&l) {
			continue
		}
		if err := l.keep(in.raw, m, resources && in.state == ListenerActive); err != nil {
			return to, err
		}
		to = append(to, l)
	}
	return to, nil
}

func compareListeners(a, b Listener) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Addresses[0], b.Addresses[0]), cmp.Compare(a.Type, b.Type), cmp.Compare(a.State, b.State))
}

// NewListener summarises a listener. Its chains are sorted by destination, last first.
// Chains of one destination stay in order, and the default chain is last.
func NewListener(m *listenerv3.Listener) Listener {
	address, port := listenerAddress(m)
	l := Listener{Name: m.GetName(), Addresses: []string{address}, Port: port}
	for _, a := range m.GetAdditionalAddresses() {
		address, _ := splitAddress(a.GetAddress())
		l.Addresses = append(l.Addresses, address)
	}
	chains := m.GetFilterChains()
	if def := m.GetDefaultFilterChain(); def != nil {
		chains = append(slices.Clip(chains), def)
	}
	matches := chainMatches(m)
	http, tcp := false, false
	for _, chain := range chains {
		dest, hasHTTP, hasTCP := summarise(chain.GetFilters())
		http, tcp = http || hasHTTP, tcp || hasTCP
		for _, match := range matches(chain) {
			l.Chains = append(l.Chains, Chain{Match: match, Destination: dest})
		}
	}
	if len(chains) == 0 {
		l.Chains = withoutChains(m)
		http = m.GetApiListener() != nil
	}
	switch {
	case http && tcp:
		l.Type = ListenerHTTPTCP
	case http:
		l.Type = ListenerHTTP
	case tcp:
		l.Type = ListenerTCP
	case m.GetUdpListenerConfig() != nil, m.GetAddress().GetSocketAddress().GetProtocol() == corev3.SocketAddress_UDP:
		l.Type = ListenerUDP
	default:
		l.Type = ListenerUnknown
	}
	slices.SortStableFunc(l.Chains, func(a, b Chain) int { return cmp.Compare(b.Destination, a.Destination) })
	return l
}

// listenerAddress returns the first address of a listener. An internal listener has its name, to
// which the addresses of endpoints refer.
func listenerAddress(m *listenerv3.Listener) (string, uint32) {
	switch {
	case m.GetInternalListener() != nil:
		return "envoy://" + m.GetName(), 0
	case m.GetAddress() == nil && m.GetApiListener() != nil:
		return "api", 0
	case m.GetAddress() == nil && m.GetName() != "":
		return m.GetName(), 0
	}
	return splitAddress(m.GetAddress())
}

// withoutChains returns what stands for the chains of a listener that has none.
func withoutChains(m *listenerv3.Listener) []Chain {
	if m.GetApiListener() != nil {
		dest, _, _ := summarise([]*listenerv3.Filter{{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: m.GetApiListener().GetApiListener()}}})
		return []Chain{{allConnections, dest}}
	}
	if m.GetFcdsConfig() != nil {
		return []Chain{{allConnections, "Filter chains: " + m.GetFcdsConfig().GetName()}}
	}
	var names []string
	for _, f := range m.GetListenerFilters() {
		proxy := new(udpproxyv3.UdpProxyConfig)
		if f.GetTypedConfig().MessageIs(proxy) && f.GetTypedConfig().UnmarshalTo(proxy) == nil {
			return udpChains(proxy)
		}
		names = append(names, f.GetName())
	}
	if len(names) == 0 {
		return []Chain{{allConnections, noDestination}}
	}
	return []Chain{{allConnections, "Filters: " + strings.Join(names, ", ")}}
}

// udpChains returns the destinations of a UDP proxy as chains.
func udpChains(proxy *udpproxyv3.UdpProxyConfig) []Chain {
	if proxy.GetMatcher() == nil {
		return []Chain{{allConnections, clusterDestination(proxy.GetCluster())}} //nolint:staticcheck // the older field
	}
	var out []Chain
	for _, a := range actionsOf(proxy.GetMatcher()) {
		route := new(udpproxyv3.Route)
		dest := extensionText(a.action)
		if a.action.GetTypedConfig().UnmarshalTo(route) == nil {
			dest = clusterDestination(route.GetCluster())
		}
		out = append(out, Chain{a.match, dest})
	}
	return out
}

// splitAddress returns an address in the format of tables, and its port.
func splitAddress(a *corev3.Address) (string, uint32) {
	switch a := a.GetAddress().(type) {
	case *corev3.Address_SocketAddress:
		if name := a.SocketAddress.GetNamedPort(); name != "" {
			return a.SocketAddress.GetAddress() + ":" + name, 0
		}
		return a.SocketAddress.GetAddress(), a.SocketAddress.GetPortValue()
	case *corev3.Address_Pipe:
		return a.Pipe.GetPath(), 0
	case *corev3.Address_EnvoyInternalAddress:
		return "envoy://" + a.EnvoyInternalAddress.GetServerListenerName() + "/" + a.EnvoyInternalAddress.GetEndpointId(), 0
	}
	return "unknown", 0
}

// ListenerTable returns listeners in Istio's columns, and with wide their names: one row
// for each filter chain if verbose, else for each listener.
func ListenerTable(listeners []Listener, verbose, wide bool) *output.Table {
	t := &output.Table{Header: []string{"ADDRESSES", "PORT", "TYPE"}, Gap: 1}
	if verbose {
		t.Header = []string{"ADDRESSES", "PORT", "MATCH", "DESTINATION"}
	}
	for _, l := range listeners {
		addresses, port := strings.Join(l.Addresses, ","), "-"
		if l.Port != 0 {
			port = strconv.FormatUint(uint64(l.Port), 10)
		}
		before, after := "", ""
		if l.State != ListenerActive {
			before, after = string(l.State)+": ", " ("+string(l.State)+")"
		}
		if !verbose {
			t.Rows = append(t.Rows, []string{addresses, port, string(l.Type) + after})
			continue
		}
		for _, c := range l.Chains {
			t.Rows = append(t.Rows, []string{addresses, port, c.Match, before + c.Destination})
		}
	}
	if wide {
		addNames(t, len(t.Header), listenerNames(listeners, verbose))
	}
	return t
}

// listenerNames returns the name for each row of ListenerTable.
func listenerNames(listeners []Listener, verbose bool) []string {
	var names []string
	for _, l := range listeners {
		rows := 1
		if verbose {
			rows = len(l.Chains)
		}
		names = append(names, slices.Repeat([]string{l.Name}, rows)...)
	}
	return names
}

// allConnections stands for the match of all connections.
const allConnections = "ALL"

// chainMatches returns a function that describes the connections of a chain of a listener.
func chainMatches(m *listenerv3.Listener) func(*listenerv3.FilterChain) []string {
	if m.GetFilterChainMatcher() == nil {
		return func(c *listenerv3.FilterChain) []string { return []string{chainMatch(c.GetFilterChainMatch())} }
	}
	byName, unread := map[string][]string{}, []string(nil)
	for _, a := range actionsOf(m.GetFilterChainMatcher()) {
		if a.action == nil {
			unread = append(unread, a.match)
			continue
		}
		name := new(wrapperspb.StringValue)
		if a.action.GetTypedConfig().UnmarshalTo(name) != nil {
			name.Value = a.action.GetName()
		}
		byName[name.GetValue()] = append(byName[name.GetValue()], a.match)
	}
	return func(c *listenerv3.FilterChain) []string {
		switch found := byName[c.GetName()]; {
		case c == m.GetDefaultFilterChain():
			return []string{otherwise}
		case len(found) > 0:
			return found
		case len(unread) > 0:
			return unread
		}
		return []string{"NONE"}
	}
}

// chainMatch describes the connections that a filter chain matches.
func chainMatch(m *listenerv3.FilterChainMatch) string {
	var parts []string
	if names := m.GetServerNames(); len(names) > 0 {
		parts = append(parts, "SNI: "+strings.Join(names, ","))
	}
	if tp := m.GetTransportProtocol(); tp != "" {
		parts = append(parts, "Trans: "+tp)
	}
	if apps := m.GetApplicationProtocols(); len(apps) > 0 {
		parts = append(parts, "App: "+applications(strings.Join(apps, ",")))
	}
	port := ""
	if m.GetDestinationPort() != nil {
		port = fmt.Sprintf(":%d", m.GetDestinationPort().GetValue())
	}
	if ranges := m.GetPrefixRanges(); len(ranges) > 0 {
		var cidrs []string
		for _, r := range ranges {
			cidrs = append(cidrs, fmt.Sprintf("%s/%d", r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
		}
		parts = append(parts, "Addr: "+strings.Join(cidrs, ",")+port)
	} else if port != "" {
		parts = append(parts, "Addr: *"+port)
	}
	if len(parts) == 0 {
		return allConnections
	}
	return strings.Join(parts, "; ")
}

// applications replaces the ALPN lists of Istio's control planes by the names in Istio's
// tables.
func applications(list string) string {
	switch list {
	case "http/1.0,http/1.1,h2c":
		return "HTTP"
	case "http/1.0,http/1.1,h2c,istio-http/1.0,istio-http/1.1,istio-h2":
		return "HTTP TLS"
	case "istio,istio-http/1.0,istio-http/1.1,istio-h2":
		return "Istio HTTP Plain"
	case "istio-peer-exchange,istio":
		return "TCP TLS"
	}
	return list
}
