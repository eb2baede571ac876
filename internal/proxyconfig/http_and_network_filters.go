package proxyconfig

import (
	"io"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/go-json-experiment/json/jsontext"
)

// Filters holds the parts of a config dump on which the way of a request through the
// filters depends.
type Filters struct {
	Listeners []*listenerv3.Listener
	// Routes are the route configurations from RDS by name.
	Routes map[string]*routev3.RouteConfiguration
	// Extensions are the configurations from ECDS by name.
	Extensions map[string]*corev3.TypedExtensionConfig
}

// ReadFilters reads the listeners of a config dump, with the routes and extension
// configurations that they refer to. A dump without any listener is an error.
func ReadFilters(r io.Reader) (*Filters, error) {
	out := newFilters()
	found, err := readSections(r, listenerSection.what, []*section{&listenerSection, &routeSection, &extensionSection}, out.add)
	if err == nil && !found[&listenerSection] {
		err = listenerSection.missing()
	}
	return out, err
}

func newFilters() *Filters {
	return &Filters{Routes: map[string]*routev3.RouteConfiguration{}, Extensions: map[string]*corev3.TypedExtensionConfig{}}
}

// add adds a resource of a section, if filters depend on it.
func (f *Filters) add(s *section, list string, raw jsontext.Value) error {
	switch s {
	case &listenerSection:
		all, err := listenersOf(list, raw)
		if err != nil || len(all) == 0 || all[0].state != ListenerActive {
			return err
		}
		m := new(listenerv3.Listener)
		f.Listeners = append(f.Listeners, m)
		return decode(all[0].raw, m)
	case &routeSection:
		if list != "dynamic_route_configs" {
			return nil // listeners contain them
		}
		m := new(routev3.RouteConfiguration)
		err := decode(raw, m)
		f.Routes[m.GetName()] = m
		return err
	case &extensionSection:
		config, err := readExtension(raw)
		f.Extensions[config.GetName()] = config
		return err
	}
	return nil
}

// readExtension decodes an entry of the section of extension configurations.
func readExtension(raw jsontext.Value) (*corev3.TypedExtensionConfig, error) {
	m := new(adminv3.EcdsConfigDump_EcdsFilterConfig)
	config := new(corev3.TypedExtensionConfig)
	err := decode(raw, m)
	if err == nil && m.GetEcdsFilter() != nil {
		err = m.GetEcdsFilter().UnmarshalTo(config)
	}
	return config, err
}
