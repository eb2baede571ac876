package xdsgen

import (
	"fmt"
	"strings"
)

// Describe says in a few words what sets a view apart from others of its
// type, for status pages.
func Describe(v View) string { //nolint:funlen // a case for each view
	var words []string
	say := func(what, of string) {
		if of != "" {
			words = append(words, what+" "+of)
		}
	}
	in := func(sc scope) {
		say("namespace", sc.namespace)
		if sc.sidecar != nil {
			say("sidecar", sc.sidecar.Namespace+"/"+sc.sidecar.Name)
		}
	}
	router := func(is bool) {
		if is {
			words = append(words, "gateways")
		}
	}
	switch v := v.(type) {
	case clusterView:
		router(v.router)
		in(v.scope)
	case grpcView:
		words = append(words, "gRPC")
		in(v.scope)
		say("short names of", v.namespace)
	case endpointView:
		router(v.router)
		if v.proxyless {
			words = append(words, "gRPC")
		}
		say("namespace", v.namespace)
		say("cluster", string(v.cluster))
		say("network", string(v.network))
		say("of networks", v.view)
	case gatewayView:
		router(true)
		in(v.scope)
	case listenerView:
		in(v.scope)
		say("cluster", string(v.cluster))
		say("network", string(v.network))
		say("bind", v.bind)
		if v.filters != "" {
			words = append(words, "HTTP filters")
		}
	case extensionView:
		for _, e := range v.extensions() {
			say("extension", e.Name)
		}
	case nameView:
		in(v.scope)
		say("cluster", string(v.cluster))
		say("network", string(v.network))
	case trustView:
	case Secrets:
		say("namespace", v.namespace)
		say("cluster", string(v.cluster))
	case routeView:
		in(v.scope)
		say("short names of", v.namespace)
		say("cluster", string(v.cluster))
	default:
		return fmt.Sprintf("%T", v)
	}
	return strings.Join(words, ", ")
}
