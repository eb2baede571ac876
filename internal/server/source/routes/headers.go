package routes

import (
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/source/fields"
)

func headersFault(field string, h *networkingv1alpha3.Headers) *fields.Error {
	var faults *fields.Error
	for _, of := range []struct {
		name string
		ops  *networkingv1alpha3.Headers_HeaderOperations
	}{{"request", h.GetRequest()}, {"response", h.GetResponse()}} {
		field := field + "." + of.name
		if n := len(of.ops.GetSet()) + len(of.ops.GetAdd()) + len(of.ops.GetRemove()); n > maxRouteParts {
			faults = faults.And(fields.Faultf(field, "has %d operations, at most %d are accepted", n, maxRouteParts))
			continue
		}
		faults = fields.AllFaults(faults, headerValuesFault(field+".set", of.ops.GetSet()), headerValuesFault(field+".add", of.ops.GetAdd()))
		for i, name := range of.ops.GetRemove() {
			if !fields.IsHeaderName(name) || strings.EqualFold(name, "host") {
				faults = faults.And(fields.Faultf(fields.At(field+".remove", i), "%q is not the name of a header that can be removed", name))
			}
		}
	}
	return faults
}

// headerValuesFault checks headers to set or to add. Istio's :authority replaces the host
// of requests.
func headerValuesFault(field string, headers map[string]string) *fields.Error {
	var faults *fields.Error
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		field := field + "[" + name + "]"
		if !fields.IsHeaderName(name) && !strings.EqualFold(name, ":authority") {
			faults = faults.And(fields.Faultf(field, "%q is not the name of a header", name))
		}
		faults = faults.And(fields.TextFault(field, headers[name]))
		if err := fields.CheckTextFormat(headers[name]); err != nil {
			faults = faults.And(fields.Faultf(field, "%w; write %%%% for a percent sign", err))
		}
		faults = faults.And(fields.EnvironmentFault(field, headers[name]))
	}
	return faults
}

// HostRewrites returns the fields of a route that replace the host of its requests. The first is
// the one that counts.
func HostRewrites(r *networkingv1alpha3.HTTPRoute) []string {
	var out []string
	if r.GetRewrite().GetAuthority() != "" {
		out = append(out, ".rewrite.authority")
	}
	add := func(field string, headers map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			if strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host") {
				out = append(out, field+"["+name+"]")
			}
		}
	}
	add(".headers.request.set", r.GetHeaders().GetRequest().GetSet())
	add(".headers.request.add", r.GetHeaders().GetRequest().GetAdd())
	if len(r.GetRoute()) == 1 { // of several destinations each has its own
		of := r.GetRoute()[0].GetHeaders().GetRequest()
		add(".route[0].headers.request.set", of.GetSet())
		add(".route[0].headers.request.add", of.GetAdd())
	}
	return out
}
