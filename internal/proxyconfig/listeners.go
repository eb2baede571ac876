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
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/order"
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
	Resource
}

// Chain is the match and the destination of one filter chain.
type Chain struct{ Match, Destination string }

// ListenerType is the protocol of the filter chains of a listener.
type ListenerType string

// The types of listeners.
const (
	ListenerHTTP    ListenerType = "HTTP"
	ListenerTCP     ListenerType = "TCP"
	ListenerHTTPTCP ListenerType = "HTTP+TCP"
	ListenerUnknown ListenerType = "UNKNOWN"
)

// ListenerFilter selects listeners; zero fields select all.
type ListenerFilter struct {
	// Address matches any address, ignoring case.
	Address string
	Port    uint32
	// Type matches ignoring case.
	Type ListenerType
}

func (f *ListenerFilter) matches(l *Listener) bool {
	return (f.Port == 0 || f.Port == l.Port) &&
		matchesFold(string(f.Type), string(l.Type)) &&
		(f.Address == "" || slices.ContainsFunc(l.Addresses, func(a string) bool { return strings.EqualFold(a, f.Address) }))
}

var listenerSection = section{
	what:    "listeners",
	typeURL: "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
	paths: map[string][]string{
		"dynamic_listeners": {"active_state", "listener"},
		"static_listeners":  {"listener"},
	},
}

// ReadListeners reads a config dump and returns the active and static listeners that the
// filter selects, sorted by port, address and type. With resources, each has its JSON. A
// dump without any listener is an error.
func ReadListeners(r io.Reader, f ListenerFilter, resources bool) ([]Listener, error) {
	return readRows(r, &listenerSection, compareListeners, func(rows []Listener, _ string, raw jsontext.Value) ([]Listener, error) {
		return appendListener(rows, raw, &f, resources)
	})
}

func appendListener(to []Listener, raw jsontext.Value, f *ListenerFilter, resources bool) ([]Listener, error) {
	m := new(listenerv3.Listener)
	if err := decode(raw, m); err != nil {
		return to, err
	}
	l := NewListener(m)
	if !f.matches(&l) {
		return to, nil
	}
	err := l.keep(raw, m, resources)
	return append(to, l), err
}

func compareListeners(a, b Listener) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Addresses[0], b.Addresses[0]), cmp.Compare(a.Type, b.Type))
}

// NewListener summarises a listener. Its chains are sorted by destination, last first.
// Chains of one destination stay in order, and the default chain is last.
func NewListener(m *listenerv3.Listener) Listener {
	address, port := splitAddress(m.GetAddress())
	l := Listener{Name: m.GetName(), Addresses: []string{address}, Port: port}
	for _, a := range m.GetAdditionalAddresses() {
		address, _ := splitAddress(a.GetAddress())
		l.Addresses = append(l.Addresses, address)
	}
	chains := m.GetFilterChains()
	if def := m.GetDefaultFilterChain(); def != nil {
		chains = append(slices.Clip(chains), def)
	}
	http, tcp := false, false
	for _, chain := range chains {
		dest, hasHTTP, hasTCP := summarise(chain.GetFilters())
		http, tcp = http || hasHTTP, tcp || hasTCP
		l.Chains = append(l.Chains, Chain{Match: chainMatch(chain.GetFilterChainMatch()), Destination: dest})
	}
	switch {
	case http && tcp:
		l.Type = ListenerHTTPTCP
	case http:
		l.Type = ListenerHTTP
	case tcp:
		l.Type = ListenerTCP
	default:
		l.Type = ListenerUnknown
	}
	order.Stable(l.Chains, func(a, b Chain) int { return cmp.Compare(b.Destination, a.Destination) })
	return l
}

// splitAddress returns an address in the format of tables, and its port.
func splitAddress(a *corev3.Address) (string, uint32) {
	switch a := a.GetAddress().(type) {
	case *corev3.Address_SocketAddress:
		return a.SocketAddress.GetAddress(), a.SocketAddress.GetPortValue()
	case *corev3.Address_Pipe:
		return "unix://" + a.Pipe.GetPath(), 0
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
		addresses, port := strings.Join(l.Addresses, ","), strconv.FormatUint(uint64(l.Port), 10)
		if !verbose {
			t.Rows = append(t.Rows, []string{addresses, port, string(l.Type)})
			continue
		}
		for _, c := range l.Chains {
			t.Rows = append(t.Rows, []string{addresses, port, c.Match, c.Destination})
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
		return "ALL"
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
