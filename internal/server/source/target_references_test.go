package source

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	typev1beta1 "istio.io/api/type/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// referringField returns a message of the kind with a reference in one of its fields.
func referringField(k *kind, fd protoreflect.FieldDescriptor, r *typev1beta1.PolicyTargetReference) *Istio {
	object, _ := k.newObject().(*Istio)
	object.ObjectMeta = metav1.ObjectMeta{Namespace: "shop", Name: "p"}
	m := object.Spec.ProtoReflect()
	if fd.IsList() {
		m.Mutable(fd).List().Append(protoreflect.ValueOf(r.ProtoReflect()))
	} else {
		m.Set(fd, protoreflect.ValueOf(r.ProtoReflect()))
	}
	return object
}

// TestReferencesNameAnObject: every kind refuses a reference that does not name one object. Fields
// with references are those of the API.
func TestReferencesNameAnObject(t *testing.T) {
	t.Parallel()
	whole := &typev1beta1.PolicyTargetReference{Group: groupGatewayAPI, Kind: "Gateway", Name: "g"}
	n := 0
	for _, k := range kinds {
		if k.newObject == nil || k.support == fields.NoEffect {
			continue
		}
		object, ok := k.newObject().(*Istio)
		if !ok {
			continue
		}
		all := object.Spec.ProtoReflect().Descriptor().Fields()
		for i := range all.Len() {
			fd := all.Get(i)
			if fd.Message() == nil || fd.Message().FullName() != whole.ProtoReflect().Descriptor().FullName() {
				continue
			}
			n++
			at := "spec." + fd.JSONName()
			if fd.IsList() {
				at += "[0]"
			}
			for name, change := range map[string]func(*typev1beta1.PolicyTargetReference){
				"":       func(*typev1beta1.PolicyTargetReference) {},
				".name":  func(r *typev1beta1.PolicyTargetReference) { r.Name = "" },
				".name ": func(r *typev1beta1.PolicyTargetReference) { r.Name = snapshot.AnyTarget },
				".kind":  func(r *typev1beta1.PolicyTargetReference) { r.Kind = "" },
				".kind ": func(r *typev1beta1.PolicyTargetReference) { r.Kind = snapshot.AnyTarget },
				".group": func(r *typev1beta1.PolicyTargetReference) { r.Group = snapshot.AnyTarget },
			} {
				r := proto.CloneOf(whole)
				change(r)
				_, err := (&Converter{Cluster: "c"}).Convert(referringField(k, fd, r), snapshot.Place{})
				want := name != ""
				field := at + name
				if want && field[len(field)-1] == ' ' {
					field = field[:len(field)-1]
				}
				got := slices.ContainsFunc(fields.FaultsOf(err), func(f *fields.Error) bool { return f.Field == field })
				if got != want {
					t.Errorf("%s with %v: %v", k.name, r, err)
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d fields have references", n)
	}
}

// TestSecurityPoliciesOfOtherTargets: a security policy for an object without proxy is refused, and
// closes the workloads of its namespace; if such policies are ignored, it is reported.
func TestSecurityPoliciesOfOtherTargets(t *testing.T) {
	t.Parallel()
	for _, k := range []*kind{authorizationPolicyKind, requestAuthenticationKind} {
		for _, r := range []*typev1beta1.PolicyTargetReference{
			{Kind: "Service", Name: "web"},
			{Group: groupNetworking, Kind: "ServiceEntry", Name: "web"},
			{Group: groupGatewayAPI, Kind: "GatewayClass", Name: "istio-waypoint"},
			{Kind: "Gateway", Name: "web"},
		} {
			object := referringField(k, k.newObject().(*Istio).Spec.ProtoReflect().Descriptor().Fields().ByName("targetRefs"), r) //nolint:forcetypeassert // both kinds are Istio's
			if _, err := (&Converter{Cluster: "c"}).Convert(object, snapshot.Place{}); err == nil {
				t.Errorf("%s for %v is accepted", k.name, r)
			}
			res, err := (&Converter{Cluster: "c", IgnorePolicies: true}).Convert(object, snapshot.Place{})
			if err != nil || !res.Unenforced(nil, false) {
				t.Errorf("%s for %v, ignored: %v, %v", k.name, r, res.Warnings, err)
			}
			closed := closedTarget(r)
			labels := map[string]string{"app": "web"}
			if got, want := snapshot.TargetsWorkload([]*typev1beta1.PolicyTargetReference{closed}, labels), r.Group != groupGatewayAPI; got != want {
				t.Errorf("%s for %v closes a workload without Gateway: %t", k.name, r, got)
			}
			labels["gateway.networking.k8s.io/gateway-name"] = "other"
			if !snapshot.TargetsWorkload([]*typev1beta1.PolicyTargetReference{closed}, labels) {
				t.Errorf("%s for %v does not close a Gateway of the namespace", k.name, r)
			}
		}
	}
}
