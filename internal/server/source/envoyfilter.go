package source

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var envoyFilterKind = istioKind(kind{
	group: groupNetworking, name: "EnvoyFilter", plural: "envoyfilters", versions: []string{"v1alpha3"},
	support: Partly, meaning: "HTTP filters and extension configurations: see [its fields](#envoyfilter)", fields: envoyFilterFields,
}, (*conversion).envoyFilter)

// Messages of Envoy's API that a patch holds or must not hold, and the network filter
// that contains HTTP filters.
const (
	extensionMessage = "envoy.config.core.v3.TypedExtensionConfig"
	filterMessage    = "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"
	routerMessage    = "envoy.extensions.filters.http.router.v3.Router"
	hcmFilter        = "envoy.filters.network.http_connection_manager"
)

// envoyFilter checks an EnvoyFilter and encodes the values of its patches. A patch
// that is not supported has no effect and gets a warning: without the unsupported
// part, it would apply to more proxies or listeners than intended.
func (c *conversion) envoyFilter(spec *networkingv1alpha3.EnvoyFilter) *FieldError {
	out := &snapshot.EnvoyFilter{Meta: c.meta, Selector: spec.GetWorkloadSelector().GetLabels(), Priority: spec.Priority}
	c.object = out
	if fault := labelsFault("workloadSelector.labels", out.Selector); fault != nil {
		return fault
	}
	if len(spec.TargetRefs) > 0 {
		return nil
	}
	names := map[string]bool{}
	return each("configPatches", spec.ConfigPatches, func(field string, p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) *FieldError {
		if w := unsupported(p); w != nil {
			c.warn(under("spec", under(field, w)))
			return nil
		}
		if p.ApplyTo == networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG {
			e, fault := extensionPatch(p)
			if fault != nil {
				return under(field, fault)
			}
			if names[e.Name] {
				return faultf(field+".patch.value.name", "%q is given twice", e.Name)
			}
			names[e.Name] = true
			out.Extensions = append(out.Extensions, e)
			return nil
		}
		f, fault := filterPatch(p)
		if fault != nil {
			return under(field, fault)
		}
		out.Filters = append(out.Filters, f)
		return nil
	})
}

// unsupported returns the part of a patch that is not supported, which makes the
// whole patch ineffective; nil if there is none.
func unsupported(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) *FieldError {
	const noEffect = "%s has no effect yet, nor has the patch"
	operation := p.GetPatch().GetOperation()
	isFilter := p.ApplyTo == networkingv1alpha3.EnvoyFilter_HTTP_FILTER
	supported := operation == networkingv1alpha3.EnvoyFilter_Patch_ADD
	switch operation {
	case networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE, networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER,
		networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST:
		supported = isFilter
	}
	chain := p.GetMatch().GetListener().GetFilterChain()
	switch {
	case !isFilter && p.ApplyTo != networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG:
		return faultf("applyTo", noEffect, p.ApplyTo)
	case !supported:
		return faultf("patch.operation", noEffect, fmt.Sprintf("%s of %s", operation, p.ApplyTo))
	case p.GetMatch().GetProxy() != nil:
		return faultf("match.proxy", noEffect, "a match by proxy")
	case !isFilter:
		return nil // extensions have no other match
	case p.GetMatch().GetObjectTypes() != nil && p.GetMatch().GetListener() == nil:
		return faultf("match", noEffect, "a match other than by listener")
	case !sameBut(p.GetMatch().GetListener(), "port_number", "filter_chain"):
		return faultf("match.listener", noEffect, "a match other than by portNumber and filterChain.filter")
	case !sameBut(chain, "filter"):
		return faultf("match.listener.filterChain", noEffect, "a match other than by filter")
	case chain.GetFilter() != nil && chain.GetFilter().GetName() != hcmFilter:
		return faultf("match.listener.filterChain.filter.name", noEffect, "a network filter other than "+hcmFilter)
	}
	return nil
}

// sameBut reports whether a message, which may be nil, sets no fields except these.
func sameBut(m proto.Message, fields ...protoreflect.Name) bool {
	same := true
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		same = false
		for _, name := range fields {
			same = same || fd.Name() == name
		}
		return same
	})
	return same
}

func extensionPatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) (snapshot.Extension, *FieldError) {
	m, fault := patchValue(p, extensionMessage)
	if fault != nil {
		return snapshot.Extension{}, fault
	}
	body, fault := packed(m)
	return snapshot.Extension{Name: textField(m, "name"), Body: body}, fault
}

func filterPatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) (snapshot.HTTPFilter, *FieldError) {
	match := p.GetMatch()
	out := snapshot.HTTPFilter{Port: match.GetListener().GetPortNumber()}
	if out.Port != 0 && !isPort(out.Port) {
		return out, faultf("match.listener.portNumber", "%d is not a port: want 1 to 65535", out.Port)
	}
	switch match.GetContext() {
	case networkingv1alpha3.EnvoyFilter_SIDECAR_INBOUND:
		out.Context = snapshot.InboundContext
	case networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND:
		out.Context = snapshot.OutboundContext
	case networkingv1alpha3.EnvoyFilter_GATEWAY:
		out.Context = snapshot.GatewayContext
	}
	near := match.GetListener().GetFilterChain().GetFilter().GetSubFilter()
	if near != nil && near.Name == "" {
		return out, faultf("match.listener.filterChain.filter.subFilter.name", "is missing")
	}
	switch operation := p.GetPatch().GetOperation(); {
	case operation == networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST,
		operation == networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE && near == nil:
		out.Insert = snapshot.InsertFirst
	case operation == networkingv1alpha3.EnvoyFilter_Patch_ADD, near == nil:
		out.Insert = snapshot.InsertLast
	case operation == networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE:
		out.Insert, out.Near = snapshot.InsertBefore, near.Name
	default:
		out.Insert, out.Near = snapshot.InsertAfter, near.Name
	}
	m, fault := patchValue(p, filterMessage)
	if fault != nil {
		return out, fault
	}
	if m.ProtoReflect().WhichOneof(m.ProtoReflect().Descriptor().Oneofs().ByName("config_type")) == nil {
		return out, faultf("patch.value", "has neither typed_config nor config_discovery")
	}
	out.Body, fault = packed(m)
	return out, fault
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

// patchValue decodes the value of a patch as the message of that name.
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
	for _, part := range parts {
		if part.message.ProtoReflect().Descriptor().FullName() == routerMessage {
			return nil, faultf(at+"."+part.path, "is a router, which every filter chain already has at its end")
		}
		if v := rules.Check(part.message); v != nil {
			return nil, under(at, under(part.path, brokenRule(v)))
		}
	}
	if v := rules.Check(m); v != nil {
		return nil, under(at, brokenRule(v))
	}
	return m, nil
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
	if err = protojson.Unmarshal(text, m); err == nil {
		return nil
	}
	at := doc.Fault(func(b []byte) error {
		err := protojson.Unmarshal(b, m.ProtoReflect().New().Interface())
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

var envoyFilterFields = []apiField{
	{Path: "workloadSelector", Support: Works},
	{Path: "targetRefs", Support: NoEffect, Meaning: "an object with it has no effect"},
	{Path: "priority", Support: Works},
	{Path: "configPatches", Support: Partly, Meaning: "the patches of [configuration-directory.md](configuration-directory.md#envoyfilter); each of the others is reported"},
}
