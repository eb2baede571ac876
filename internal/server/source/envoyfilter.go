package source

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var envoyFilterKind = istioKind(kind{
	group: groupNetworking, name: "EnvoyFilter", plural: "envoyfilters", versions: []string{"v1alpha3"},
	support: Partly, meaning: "all patches but `BOOTSTRAP`; see [its fields](#envoyfilter)", fields: envoyFilterFields,
}, (*conversion).envoyFilter)

// The HTTP filter that ends every list of HTTP filters, its message, and the network filter
// that contains HTTP filters.
const (
	routerFilter  = "envoy.filters.http.router"
	routerMessage = "envoy.extensions.filters.http.router.v3.Router"
	hcmFilter     = "envoy.filters.network.http_connection_manager"
)

// patchTarget describes a place to which patches apply.
type patchTarget struct {
	message    protoreflect.FullName // of the value
	operations string
	// match is the field of a match that the place supports.
	match protoreflect.Name
}

const (
	listenerMatch = "listener"
	routeMatch    = "route_configuration"
	allOperations = "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE REPLACE INSERT_BEFORE INSERT_AFTER INSERT_FIRST"
)

// patchTargets holds the places to which patches apply.
func patchTargets() map[networkingv1alpha3.EnvoyFilter_ApplyTo]patchTarget {
	return map[networkingv1alpha3.EnvoyFilter_ApplyTo]patchTarget{
		networkingv1alpha3.EnvoyFilter_LISTENER: {
			"envoy.config.listener.v3.Listener", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE", listenerMatch,
		},
		networkingv1alpha3.EnvoyFilter_LISTENER_FILTER: {"envoy.config.listener.v3.ListenerFilter", allOperations, listenerMatch},
		networkingv1alpha3.EnvoyFilter_FILTER_CHAIN: {
			"envoy.config.listener.v3.FilterChain", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE", listenerMatch,
		},
		networkingv1alpha3.EnvoyFilter_NETWORK_FILTER: {"envoy.config.listener.v3.Filter", allOperations, listenerMatch},
		networkingv1alpha3.EnvoyFilter_HTTP_FILTER: {
			"envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter", allOperations, listenerMatch,
		},
		networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION: {
			"envoy.config.route.v3.RouteConfiguration", "MERGE MERGE_AND_REPLACE_LIST", routeMatch,
		},
		networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST: {
			"envoy.config.route.v3.VirtualHost", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE REPLACE", routeMatch,
		},
		networkingv1alpha3.EnvoyFilter_HTTP_ROUTE: {"envoy.config.route.v3.Route", allOperations, routeMatch},
		networkingv1alpha3.EnvoyFilter_CLUSTER: {
			"envoy.config.cluster.v3.Cluster", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE", "cluster",
		},
		networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG: {"envoy.config.core.v3.TypedExtensionConfig", "ADD", ""},
	}
}

// envoyFilter checks an EnvoyFilter and decodes the values of its patches. An invalid patch
// has no effect and gets a warning; the others work.
func (c *conversion) envoyFilter(spec *networkingv1alpha3.EnvoyFilter) *FieldError {
	out := &snapshot.EnvoyFilter{Meta: c.meta, Selector: spec.GetWorkloadSelector().GetLabels(), Priority: spec.Priority}
	c.object = out
	if fault := labelsFault("workloadSelector.labels", out.Selector); fault != nil {
		return fault
	}
	out.Gateways = c.targetGateways(spec.TargetRefs)
	targets, names, index := patchTargets(), map[string]bool{}, -1
	return each("configPatches", spec.ConfigPatches, func(field string, p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) *FieldError {
		index++
		fault := c.envoyPatch(out, p, index, targets, names)
		if fault != nil {
			c.warn(under("spec", under(field, faultf(fault.Field, "%w: the patch has no effect", fault.Err))))
		}
		return nil
	})
}

// targetGateways returns the names of the Gateways of the Kubernetes Gateway API that the
// references name; nil if there are no references.
func (c *conversion) targetGateways(refs []*typev1beta1.PolicyTargetReference) []string {
	if len(refs) == 0 {
		return nil
	}
	names := []string{}
	for i, r := range refs {
		if r.GetKind() != "Gateway" || r.GetGroup() != groupGatewayAPI {
			c.warn(under("spec", noEffect(at("targetRefs", i), "only references to a Gateway of "+groupGatewayAPI+" select proxies")))
			continue
		}
		names = append(names, r.GetName())
	}
	return names
}

// envoyPatch checks a patch and adds it to the object. names holds the names of extensions.
func (c *conversion) envoyPatch(out *snapshot.EnvoyFilter, p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, index int, targets map[networkingv1alpha3.EnvoyFilter_ApplyTo]patchTarget, names map[string]bool) *FieldError {
	target, operation := targets[p.GetApplyTo()], p.GetPatch().GetOperation()
	switch {
	case target.message == "" && p.GetApplyTo() == networkingv1alpha3.EnvoyFilter_BOOTSTRAP:
		return faultf("applyTo", "BOOTSTRAP is not supported: the agent makes the bootstrap from its own flags")
	case target.message == "":
		return faultf("applyTo", "%s is no place for a patch", p.GetApplyTo())
	case !slices.Contains(strings.Fields(target.operations), operation.String()):
		return faultf("patch.operation", "%s is not possible for %s: use one of %s", operation, p.GetApplyTo(), strings.ReplaceAll(target.operations, " ", ", "))
	}
	proxy, fault := checkMatch(p, target)
	if fault != nil {
		return fault
	}
	spec := proto.CloneOf(p)
	spec.Patch.Value = nil
	patch := &snapshot.Patch{Of: out.Key(), Index: index, Spec: spec, Proxy: proxy}
	if operation != networkingv1alpha3.EnvoyFilter_Patch_REMOVE {
		if patch.Value, fault = patchValue(p, target.message); fault != nil {
			return fault
		}
	}
	if p.GetApplyTo() != networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG {
		out.Patches = append(out.Patches, patch)
		return nil
	}
	e := snapshot.Extension{Name: textField(patch.Value, "name"), Proxy: proxy}
	if names[e.Name] {
		return faultf("patch.value.name", "%q is given twice", e.Name)
	}
	body, fault := packed(patch.Value)
	if e.Body = string(body); fault == nil {
		names[e.Name] = true
		out.Extensions = append(out.Extensions, e)
	}
	return fault
}

// merges reports whether an operation merges the value into a part of the configuration, so
// that the value may be incomplete.
func merges(operation networkingv1alpha3.EnvoyFilter_Patch_Operation) bool {
	return operation == networkingv1alpha3.EnvoyFilter_Patch_MERGE || operation == networkingv1alpha3.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}

// maxVersionPattern bounds the bytes of a regular expression, as Istio does.
const maxVersionPattern = 1024

// checkMatch checks the match of a patch. A condition that is not supported makes the patch
// ineffective: without the condition, it would apply to more proxies or resources than
// intended.
func checkMatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, target patchTarget) (snapshot.ProxyMatch, *FieldError) {
	m := p.GetMatch()
	pattern := m.GetProxy().GetProxyVersion()
	if len(pattern) > maxVersionPattern {
		return snapshot.ProxyMatch{}, faultf("match.proxy.proxyVersion", "has %d bytes, at most %d are accepted", len(pattern), maxVersionPattern)
	}
	proxy, err := snapshot.NewProxyMatch(pattern, m.GetProxy().GetMetadata())
	if err != nil {
		return proxy, faultf("match.proxy.proxyVersion", "%w", err)
	}
	if m.GetContext() == networkingv1alpha3.EnvoyFilter_WAYPOINT {
		return proxy, faultf("match.context", "there are no waypoints")
	}
	object := m.ProtoReflect().WhichOneof(m.ProtoReflect().Descriptor().Oneofs().ByName("object_types"))
	if object != nil && object.Name() != target.match && p.GetApplyTo() != networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG {
		return proxy, faultf("match."+object.JSONName(), "cannot match a %s: use %s", p.GetApplyTo(), object.ContainingMessage().Fields().ByName(target.match).JSONName())
	}
	l := m.GetListener()
	for field, number := range map[string]uint32{
		"listener.portNumber": l.GetPortNumber(), "listener.filterChain.destinationPort": l.GetFilterChain().GetDestinationPort(),
		"routeConfiguration.portNumber": m.GetRouteConfiguration().GetPortNumber(), "cluster.portNumber": m.GetCluster().GetPortNumber(),
	} {
		if number != 0 && !isPort(number) {
			return proxy, faultf("match."+field, "%d is not a port: want 1 to 65535", number)
		}
	}
	if l.GetPortName() != "" {
		return proxy, faultf("match.listener.portName", "is not supported: use portNumber")
	}
	return proxy, checkFilterMatch(p)
}

// checkFilterMatch checks which filter a patch of filters names.
func checkFilterMatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) *FieldError {
	const filter = "match.listener.filterChain.filter"
	l := p.GetMatch().GetListener()
	near, inner := l.GetFilterChain().GetFilter(), l.GetFilterChain().GetFilter().GetSubFilter()
	place, named := "", true
	switch p.GetApplyTo() {
	case networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		place, named = "match.listener.listenerFilter", l.GetListenerFilter() != ""
	case networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:
		place, named = filter+".name", near != nil
	case networkingv1alpha3.EnvoyFilter_HTTP_FILTER:
		place, named = filter+".subFilter.name", inner != nil
		if near != nil && near.GetName() != hcmFilter {
			return faultf(filter+".name", "%q has no HTTP filters: use %s", near.GetName(), hcmFilter)
		}
	}
	operation := p.GetPatch().GetOperation()
	switch {
	case inner != nil && inner.GetName() == "":
		return faultf(filter+".subFilter.name", "is missing")
	case near != nil && near.GetName() == "":
		return faultf(filter+".name", "is missing")
	case !named && (operation == networkingv1alpha3.EnvoyFilter_Patch_REMOVE || operation == networkingv1alpha3.EnvoyFilter_Patch_REPLACE):
		return faultf(place, "is missing, which %s needs", operation)
	case inner.GetName() == routerFilter && operation == networkingv1alpha3.EnvoyFilter_Patch_REMOVE:
		return faultf("patch.operation", "would remove the router, without which Envoy refuses the listener")
	}
	return nil
}

func textField(m proto.Message, name protoreflect.Name) string {
	return m.ProtoReflect().Get(m.ProtoReflect().Descriptor().Fields().ByName(name)).String()
}

// packed encodes a message. Equal messages have equal bytes.
func packed(m proto.Message) ([]byte, *FieldError) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, faultf("patch.value", "cannot be encoded: %w", err)
	}
	return body, nil
}

// patchValue decodes and checks the value of a patch as the message of that name.
func patchValue(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, message protoreflect.FullName) (proto.Message, *FieldError) {
	const at = "patch.value"
	value := p.GetPatch().GetValue()
	if value == nil {
		return nil, faultf(at, "is missing")
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(message)
	if err != nil {
		return nil, faultf(at, "%w", err)
	}
	m := t.New().Interface()
	fault := fill(m, value)
	parts, unknown := typedParts(value)
	if unknown != nil {
		return nil, under(at, unknown)
	}
	for _, part := range parts {
		// The decoder of the whole value does not report places within typed parts.
		if inner := fill(part.message, part.fields); inner != nil {
			return nil, under(at, under(part.path, inner))
		}
	}
	if fault != nil {
		return nil, under(at, fault)
	}
	if merges(p.GetPatch().GetOperation()) {
		return m, nil // the result is checked
	}
	return m, under(at, checkValue(p, m, parts))
}

// checkValue checks a complete value, and its typed parts.
func checkValue(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, m proto.Message, parts []typed) *FieldError {
	near := p.GetMatch().GetListener().GetFilterChain().GetFilter().GetSubFilter().GetName()
	ofRouter := p.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_REPLACE && near == routerFilter
	for _, part := range parts {
		if isRouter := part.message.ProtoReflect().Descriptor().FullName() == routerMessage; isRouter && !ofRouter {
			return faultf(part.path, "is a router, which every filter chain already has at its end")
		} else if !isRouter && ofRouter {
			return faultf(part.path, "is not a router, which every filter chain needs at its end")
		}
		if v := rules.Check(part.message); v != nil {
			return under(part.path, brokenRule(v))
		}
	}
	if v := rules.CheckAll(m); v != nil {
		return brokenRule(v)
	}
	fields := m.ProtoReflect().Descriptor()
	switch p.GetApplyTo() {
	case networkingv1alpha3.EnvoyFilter_HTTP_FILTER, networkingv1alpha3.EnvoyFilter_NETWORK_FILTER, networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		if m.ProtoReflect().WhichOneof(fields.Oneofs().ByName("config_type")) == nil {
			return faultf("", "has neither typed_config nor config_discovery")
		}
	case networkingv1alpha3.EnvoyFilter_LISTENER, networkingv1alpha3.EnvoyFilter_CLUSTER:
		switch name := textField(m, "name"); {
		case name == "":
			return faultf("name", "is missing")
		case isGenerated(name):
			return faultf("name", "%q is a name of generated configuration", name)
		}
	}
	return nil
}

// isGenerated reports whether a name is one of those that workloads have besides those of
// services.
func isGenerated(name string) bool {
	_, cluster := mesh.ParseClusterName(name)
	_, sni := mesh.ParseSNI(name)
	switch name {
	case "virtualInbound", "virtualOutbound", mesh.BlackHoleCluster, mesh.PassthroughCluster, mesh.InboundPassthroughCluster:
		return true
	}
	return cluster || sni
}

// brokenRule describes a violation of the rules of Envoy's API, because of which Envoy would
// refuse the message.
func brokenRule(v *rules.Violation) *FieldError {
	return faultf(v.Path, "breaks Envoy's rules: %s", v.Reason)
}

// fill decodes fields into a message.
func fill(m proto.Message, fields *structpb.Struct) *FieldError {
	text, err := protojson.Marshal(fields)
	if err != nil {
		return faultf("", "%w", err)
	}
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: text, Line: 1})
	if err != nil {
		return faultf("", "%w", err)
	}
	if err = istiojson.Unmarshal(protojson.UnmarshalOptions{}, text, m); err == nil {
		return nil
	}
	at := doc.Fault(func(b []byte) error {
		err := istiojson.Unmarshal(protojson.UnmarshalOptions{}, b, m.ProtoReflect().New().Interface())
		if err != nil && strings.Contains(err.Error(), `missing "@type"`) {
			return nil // Fault left it out
		}
		return err
	})
	return &FieldError{Field: at, Err: errors.New(protoReason(err, at, m.ProtoReflect().Descriptor()))}
}

// typed is a part of a value with a type of its own.
type typed struct {
	path    string
	fields  *structpb.Struct // without @type
	message proto.Message    // an empty message of the type
}

// typedParts returns the typed parts of a patch's value. A part without a known type
// is a fault.
func typedParts(value *structpb.Struct) ([]typed, *FieldError) {
	var out []typed
	for _, path := range [][]string{
		{"typed_config"}, {"typedConfig"}, {"config_discovery", "default_config"}, {"configDiscovery", "defaultConfig"},
	} {
		part := value
		for _, name := range path {
			part = part.GetFields()[name].GetStructValue()
		}
		if part == nil {
			continue
		}
		at := strings.Join(path, ".")
		url := part.GetFields()["@type"].GetStringValue()
		if url == "" {
			return nil, faultf(at, `has no "@type"`)
		}
		t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
		if err != nil {
			return nil, faultf(at+".@type", "%q is no type of Envoy's API", url)
		}
		fields := &structpb.Struct{Fields: maps.Clone(part.GetFields())}
		delete(fields.Fields, "@type")
		if !isWellKnown(t.Descriptor()) { // which have a JSON form of their own
			out = append(out, typed{at, fields, t.New().Interface()})
		}
	}
	return out, nil
}

const noSuchPatch = "see [envoyfilter.md](envoyfilter.md)"

var envoyFilterFields = []apiField{
	{Path: "workloadSelector", Support: Works},
	{Path: "targetRefs", Support: Partly, Meaning: "references to a Gateway of the Kubernetes Gateway API"},
	{Path: "targetRefs.kind", Support: Works},
	{Path: "targetRefs.group", Support: Works},
	{Path: "targetRefs.name", Support: Works},
	{Path: "targetRefs.namespace", Support: NoEffect, Meaning: "the Gateway is in the namespace of the proxy"},
	{Path: "priority", Support: Works},
	{Path: "configPatches", Support: Partly, Meaning: noSuchPatch + "; `BOOTSTRAP`, waypoints and a match by `portName` of a listener are reported"},
	{Path: "configPatches.applyTo", Support: Works},
	{Path: "configPatches.match", Support: Works},
	{Path: "configPatches.patch", Support: Partly, Meaning: "all but `filterClass`"},
	{Path: "configPatches.patch.operation", Support: Works},
	{Path: "configPatches.patch.value", Support: Works},
	{Path: "configPatches.patch.filterClass", Support: NoEffect, Meaning: "the operation decides the place of a filter"},
}
