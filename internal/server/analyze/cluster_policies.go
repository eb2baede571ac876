package analyze

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// mtls returns the modes of mTLS that the policies of the cluster give to a pod.
func (v *clusterView) mtls(pod *snapshot.Pod) snapshot.MTLS {
	namespaces := v.Snapshot.Namespaces
	return snapshot.WorkloadMTLS(namespaces.Get(v.Snapshot.Mesh.RootNamespace), namespaces.Get(pod.Namespace), pod.Labels)
}

// mtlsDifference is a mode of mTLS in the cluster of a view, by a policy, and the one in another cluster.
type mtlsDifference struct {
	policy      snapshot.Policy
	here, there snapshot.MTLSMode
	port        uint32 // 0 for all ports
}

// compareMTLS finds the pods of shared services whose mTLS is another one in another cluster than in
// the cluster of the view, which decides how its clients call them.
func (v *clusterView) compareMTLS(far *clusterView) {
	hosts := map[mtlsDifference]string{}
	for _, s := range v.sharedWith(far) {
		for _, pod := range s.pods {
			policy := v.decidesMTLS(pod)
			if policy == nil {
				continue // the policy is in the other cluster
			}
			here, there := v.mtls(pod), far.mtls(pod)
			for port := range maps.Keys(here.Ports) {
				if x, y := here.Port(port), there.Port(port); x != y && x != here.Default {
					hosts[mtlsDifference{policy, x, y, port}] = s.svc.Host
				}
			}
			if here.Default != there.Default && here.Default != snapshot.Permissive {
				hosts[mtlsDifference{policy, here.Default, there.Default, 0}] = s.svc.Host
			}
		}
	}
	for d, host := range hosts {
		level, what := codes.Warning, "accept plaintext"
		switch {
		case d.here == snapshot.Disable && d.there == snapshot.Strict:
			level, what = codes.Error, fmt.Sprintf("refuse the plaintext of clients in cluster %s", v.id)
		case d.there == snapshot.Disable:
			level, what = codes.Error, fmt.Sprintf("refuse the mTLS of clients in cluster %s", v.id)
		case d.here == snapshot.Disable:
			what = fmt.Sprintf("are called in plaintext by clients in cluster %s, although they accept mTLS", v.id)
		case d.there == snapshot.Strict:
			what = "accept only mTLS"
		}
		field := "spec.mtls.mode"
		if d.port != 0 {
			field = fmt.Sprintf("spec.portLevelMtls[%d].mode", d.port)
		}
		v.findIn(level, codes.SecurityDiffers, d.policy, v.eitherWay(far, d.policy), field, "is %s, but in cluster %s it is %s for the same services: pods of %s there %s",
			d.here, far.id, d.there, host, what)
	}
}

// decidesMTLS returns the PeerAuthentication that decides the mode of a pod.
func (v *clusterView) decidesMTLS(pod *snapshot.Pod) snapshot.Policy {
	namespaces := v.Snapshot.Namespaces
	var out snapshot.Policy
	for _, ns := range []string{v.Snapshot.Mesh.RootNamespace, pod.Namespace} {
		var whole, selecting snapshot.Policy
		for p := range snapshot.Policies[*securityv1beta1.PeerAuthentication](namespaces.Get(ns), snapshot.KindPeerAuthentication) {
			labels := p.Spec.GetSelector().GetMatchLabels()
			if len(labels) == 0 && whole == nil && p.Spec.GetMtls() != nil {
				whole = p
			} else if len(labels) > 0 && selecting == nil && ns == pod.Namespace && snapshot.Selects(labels, pod.Labels) {
				selecting = p
			}
		}
		for _, p := range []snapshot.Policy{whole, selecting} {
			if p != nil {
				out = p
			}
		}
	}
	return out
}

// comparePolicies finds the policies that do not protect the pods of shared services in another
// cluster.
func (v *clusterView) comparePolicies(far *clusterView) {
	pods := v.sharedWith(far)
	for _, kind := range []snapshot.Kind{snapshot.KindAuthorizationPolicy, snapshot.KindRequestAuthentication} {
		for _, facts := range v.Snapshot.Namespaces.All() {
			for _, p := range facts.Policies[kind] {
				v.comparePolicy(far, p, pods)
			}
		}
	}
}

func (v *clusterView) comparePolicy(far *clusterView, p snapshot.Policy, all []shared) {
	k := p.Key()
	selector, effect := effectOf(p)
	if effect == "" {
		return
	}
	root := k.Namespace == v.Snapshot.Mesh.RootNamespace
	host := ""
	for _, s := range all {
		for _, pod := range s.pods {
			if (root || pod.Namespace == k.Namespace) && snapshot.Selects(selector, pod.Labels) {
				if host == "" || strings.HasSuffix(host, "."+v.Snapshot.Mesh.RootNamespace+".svc."+mesh.DefaultDomain) { // prefer applications
					host = s.svc.Host
				}
			}
		}
	}
	if host == "" {
		return
	}
	if facts := far.Snapshot.Namespaces.Get(k.Namespace); facts != nil {
		if slices.ContainsFunc(facts.Policies[k.Kind], func(o snapshot.Policy) bool { return proto.Equal(o.Content(), p.Content()) }) {
			return
		}
	}
	v.findFix(codes.SecurityDiffers, p, v.eitherWay(far, p), "", "applies only in cluster %s: cluster %s %s, so pods of %s there %s", v.id, far.id, far.instead(p), host, effect)
}

// effectOf returns the selector of a policy, and what pods without the policy do; "" if the policy
// is for gateways or protects nothing.
func effectOf(p snapshot.Policy) (selector map[string]string, without string) {
	switch s := p.Content().(type) {
	case *securityv1beta1.RequestAuthentication:
		if len(s.GetTargetRefs()) == 0 && s.GetTargetRef() == nil {
			return s.GetSelector().GetMatchLabels(), "do not check the tokens of requests"
		}
	case *securityv1beta1.AuthorizationPolicy:
		if len(snapshot.TargetsOf(s)) > 0 {
			return nil, ""
		}
		switch s.GetAction() {
		case securityv1beta1.AuthorizationPolicy_ALLOW:
			return s.GetSelector().GetMatchLabels(), "do not restrict requests in this way"
		case securityv1beta1.AuthorizationPolicy_DENY:
			return s.GetSelector().GetMatchLabels(), "accept the requests that it denies"
		case securityv1beta1.AuthorizationPolicy_CUSTOM:
			return s.GetSelector().GetMatchLabels(), "do not ask its provider"
		}
	}
	return nil, ""
}

// securityFields are the fields of MeshConfig that should be the same in all clusters.
var securityFields = []protoreflect.Name{
	"root_namespace", "enable_auto_mtls", "mesh_mTLS", "tls_defaults", "path_normalization", "outbound_traffic_policy",
}

// compareMeshConfig finds the fields of MeshConfig by which requests between clusters fail, or are less
// protected in another cluster.
func (v *clusterView) compareMeshConfig(far *clusterView) {
	if v.Settings == nil || far.Settings == nil {
		return
	}
	here, there := v.Settings.Mesh, far.Settings.Mesh
	edit := far.kubectl(far.id, far.Settings.Namespace) + " edit configmap " + far.Settings.Name
	if own := here.GetTrustDomain(); own != there.GetTrustDomain() && !slices.Contains(there.GetTrustDomainAliases(), own) {
		far.findFix(codes.TrustDomainDiffers, far.Settings, edit, "data.mesh.trustDomain", "is %q, but that of cluster %s is %q, which trustDomainAliases does not have: pods here refuse the mTLS of clients in cluster %s",
			there.GetTrustDomain(), v.id, own, v.id)
	}
	if v.id > far.id {
		return // one finding for both
	}
	x, y := here.ProtoReflect(), there.ProtoReflect()
	for _, name := range securityFields {
		fd := (&meshv1alpha1.MeshConfig{}).ProtoReflect().Descriptor().Fields().ByName(name)
		if fd == nil || x.Get(fd).Equal(y.Get(fd)) {
			continue
		}
		far.findFix(codes.MeshConfigDiffers, far.Settings, edit, "data.mesh."+fd.JSONName(), "is %s, but in cluster %s it is %s", textOf(y, fd), v.id, textOf(x, fd))
	}
}

// textOf returns the value of a field.
func textOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) string {
	if !m.Has(fd) {
		return "not set"
	}
	if fd.Message() == nil {
		return m.Get(fd).String()
	}
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m.Get(fd).Message().Interface())
	var out bytes.Buffer
	if err != nil || json.Compact(&out, text) != nil {
		return "another value"
	}
	return out.String()
}
