package source

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// replacements holds the fields and values that Istio's API marks as deprecated, by their full
// names, and what replaces each of them.
var replacements = map[protoreflect.FullName]string{
	"istio.networking.v1alpha3.CorsPolicy.allow_origin":                                 "allowOrigins",
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay.percent":                        "percentage",
	"istio.networking.v1alpha3.HTTPRoute.mirror_percent":                                "mirrorPercentage",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.minimum_ring_size": "ringHash.minimumRingSize",
	"istio.networking.v1alpha3.LoadBalancerSettings.LEAST_CONN":                         "LEAST_REQUEST",
}

// warnDeprecated warns about the deprecated fields of a spec.
func (c *conversion) warnDeprecated(faults []*fields.Error) {
	for _, w := range faults {
		w.Field, w.Kind = "spec."+w.Field, fields.Deprecated
		c.warn(w)
	}
}

// deprecated returns a warning about each field of a message with a replacement.
func deprecated(m protoreflect.Message) []*fields.Error {
	var out []*fields.Error
	below := func(field string, value protoreflect.Value) {
		for _, w := range deprecated(value.Message()) {
			w.Field = field + "." + w.Field
			out = append(out, w)
		}
	}
	descriptors := m.Descriptor().Fields()
	for i := range descriptors.Len() {
		fd := descriptors.Get(i)
		if !m.Has(fd) {
			continue
		}
		value, isMessage := m.Get(fd), fd.Message() != nil && !fd.IsMap()
		switch by := replacements[fd.FullName()]; {
		case by != "":
			out = append(out, fields.Faultf(fd.JSONName(), "is deprecated: use %s", by))
		case isMessage && fd.IsList():
			for j := range value.List().Len() {
				below(fields.At(fd.JSONName(), j), value.List().Get(j))
			}
		case isMessage:
			below(fd.JSONName(), value)
		case fd.Enum() != nil && !fd.IsList():
			if v := fd.Enum().Values().ByNumber(value.Enum()); v != nil && replacements[v.FullName()] != "" {
				out = append(out, fields.Faultf(fd.JSONName(), "%s is deprecated: use %s", v.Name(), replacements[v.FullName()]))
			}
		}
	}
	return out
}
