package analyze

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// OfFiles returns findings for the problems of files.
func OfFiles(problems []dir.Problem) []Finding {
	var out []Finding
	for i := range problems {
		p := &problems[i]
		out = append(out, Finding{
			Code: codeOf(p.Kind), Object: p.Key, Place: snapshot.Place{File: p.File, Line: p.Line}, Exact: true,
			Message: p.Reason, suppress: p.Suppress,
		})
	}
	return out
}

// OfAPIs returns findings for the problems of Kubernetes APIs.
func OfAPIs(problems []kube.Problem) []Finding {
	var out []Finding
	for _, p := range problems {
		for i, reason := range p.Reasons {
			kind := fields.Unreadable
			if p.Key.Name == "" {
				reason = p.Object + ": " + reason
			} else {
				kind = p.Kinds[i]
			}
			out = append(out, Finding{Code: codeOf(kind), Object: p.Key, Message: reason, suppress: p.Suppress})
		}
	}
	return out
}

func codeOf(kind fields.ProblemKind) codes.Code {
	switch kind {
	case fields.Refused:
		return codes.SchemaValidationError
	case fields.Repeated:
		return codes.RepeatedObject
	case fields.Unreadable:
		return codes.Unreadable
	case fields.UnknownAnnotation:
		return codes.UnknownAnnotation
	case fields.MisplacedAnnotation:
		return codes.MisplacedAnnotation
	case fields.WrongReplace:
		return codes.EnvoyFilterUsesReplaceOperationIncorrectly
	case fields.WrongAdd:
		return codes.EnvoyFilterUsesAddOperationIncorrectly
	case fields.WrongRemove:
		return codes.EnvoyFilterUsesRemoveOperationIncorrectly
	case fields.EmptyList:
		return codes.EmptyListPermitsAll
	case fields.PrivateKey:
		return codes.PrivateKeyInKeySet
	case fields.Deprecated:
		return codes.Deprecated
	}
	return codes.NoEffect
}

// problems adds the problems of the registry.
func (m *checker) problems() {
	codes := map[facts.ProblemKind]codes.Code{
		facts.MissingReference: codes.ReferencedResourceNotFound, facts.UnusableDelegate: codes.UnusableDelegate,
		facts.UnopenedServer: codes.ConflictingGateways, facts.SharedHost: codes.SharedHost, facts.SharedAddress: codes.SharedAddress,
		facts.RepeatedExtension: codes.RepeatedExtension,
		facts.BeyondLimit:       codes.SchemaValidationError,
	}
	fields := make(map[*snapshot.VirtualService]map[string]string) // an object may have many problems
	for i := range m.Problems {
		p := &m.Problems[i]
		if p.Kind == facts.ClosedNetwork {
			m.closedNetwork(mesh.NetworkID(p.Refers), p.Text)
			continue
		}
		field := p.Field
		if v, ok := m.objects[p.Object].(*snapshot.VirtualService); ok && field == "" {
			if fields[v] == nil {
				fields[v] = fieldsOfHosts(v)
			}
			field = fields[v][p.Refers]
		}
		near, wrong := m.nearestReference(p, field)
		if f := m.findKeyFix(codes[p.Kind], p.Object, m.correctTo(m.objects[p.Object], wrong, near), field, p.Text+didYouMean(near)); f != nil {
			f.Logged = true
		}
	}
}

// nearestReference returns the name that was probably meant by a name that no object has, or "", and the field
// with the name.
func (m *checker) nearestReference(p *facts.Problem, field string) (near, of string) {
	if p.Kind != facts.MissingReference {
		return "", ""
	}
	switch o := m.objects[p.Object].(type) {
	case *snapshot.VirtualService:
		if strings.HasSuffix(field, ".host") {
			return m.nearestHost(p.Refers), field
		}
		for i, name := range o.Gateways {
			if field == at("spec.gateways", i) {
				return m.nearestGateway(name), field
			}
		}
	case *snapshot.AuthorizationPolicy:
		return nearest(o.Spec.GetProvider().GetName(), slices.Collect(maps.Keys(m.Snapshot.Mesh.Authorizers))), "spec.provider.name"
	}
	return "", ""
}

// closedNetwork reports a network without a usable gateway: at the label of its cluster, if only one
// cluster has the network.
func (m *checker) closedNetwork(network mesh.NetworkID, text string) {
	var of []mesh.ClusterID
	for id := range m.clusters {
		if m.Snapshot.NetworkOf(id) == network {
			of = append(of, id)
		}
	}
	if len(of) != 1 {
		m.findKey(codes.UnreachableNetwork, snapshot.Key{}, "", text).Logged = true
		return
	}
	key := snapshot.Key{Kind: snapshot.KindNamespace, Cluster: of[0], Name: m.Snapshot.Mesh.RootNamespace}
	fix := ""
	gateways := 0
	for _, svc := range list[*snapshot.Service](m, snapshot.KindService) {
		own := mesh.NetworkID(svc.Labels[mesh.LabelNetwork])
		switch {
		case svc.Cluster != of[0] || own == "":
		case own == network:
			gateways++
		case svc.Namespace == key.Name:
			text += fmt.Sprintf("; Service %s is a gateway of network %s", nameOf(svc), own)
			fix = fmt.Sprintf("kubectl%s label namespace %s %s=%s --overwrite", m.flags(of[0]), key.Name, mesh.LabelNetwork, own)
			if m.misnames(of[0], string(own), network) {
				fix = fmt.Sprintf("%s label service %s %s=%s --overwrite", m.kubectl(of[0], svc.Namespace), svc.Name, mesh.LabelNetwork, network)
			}
		}
	}
	if fix == "" && gateways == 0 {
		fix = fmt.Sprintf("meshctl upgrade --east-west-gateway --network %s%s", network, m.flags(of[0]))
	}
	if f := m.findKeyFix(codes.UnreachableNetwork, key, fix, "metadata.labels["+mesh.LabelNetwork+"]", text); f != nil {
		f.Logged = true
	}
}

// fieldsOfHosts returns the first field of a VirtualService for each host of its destinations.
func fieldsOfHosts(v *snapshot.VirtualService) map[string]string {
	out := make(map[string]string)
	for field, d := range destinations(v) {
		if host := d.GetHost(); out[host] == "" {
			out[host] = field + ".host"
		}
	}
	return out
}

// destinations iterates over the destinations and mirrors of a VirtualService, with their
// fields.
func destinations(v *snapshot.VirtualService) func(yield func(string, *networkingv1alpha3.Destination) bool) {
	return func(yield func(string, *networkingv1alpha3.Destination) bool) {
		each := func(field string, d *networkingv1alpha3.Destination) bool { return d == nil || yield(field, d) }
		for i, r := range v.HTTP {
			field := at("spec.http", i)
			for j, to := range r.GetRoute() {
				if !each(at(field+".route", j)+".destination", to.GetDestination()) {
					return
				}
			}
			if !each(field+".mirror", r.GetMirror()) {
				return
			}
			for j, to := range r.GetMirrors() {
				if !each(at(field+".mirrors", j)+".destination", to.GetDestination()) {
					return
				}
			}
		}
		for i, r := range v.TLS {
			for j, to := range r.GetRoute() {
				if !each(at(at("spec.tls", i)+".route", j)+".destination", to.GetDestination()) {
					return
				}
			}
		}
		for i, r := range v.TCP {
			for j, to := range r.GetRoute() {
				if !each(at(at("spec.tcp", i)+".route", j)+".destination", to.GetDestination()) {
					return
				}
			}
		}
	}
}
