package rbac

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// TestMistakesPermitNoMore: after a mistake in one of random policies, of which no valid version is
// known any more, no request is permitted that was refused before.
func TestMistakesPermitNoMore(t *testing.T) { //nolint:paralleltest // shares patterns
	mistakes, refused, permitted := 0, 0, 0
	for seed := range uint64(200) {
		r := newRandomPolicies(seed, 81)
		policies := r.policies()
		if len(policies) == 0 {
			continue
		}
		nth := r.IntN(len(policies))
		text, err := protojson.Marshal(policies[nth].Spec)
		if err != nil {
			t.Fatal(err)
		}
		var spec any
		if err := json.Unmarshal(text, &spec); err != nil {
			t.Fatal(err)
		}
		spec = r.mistake(spec, 0)
		object := map[string]any{
			"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
			"metadata": map[string]any{"namespace": "a", "name": policies[nth].Name, "annotations": map[string]string{}}, "spec": spec,
		}
		if policies[nth].DryRun {
			object["metadata"].(map[string]any)["annotations"] = map[string]string{"istio.io/dry-run": r.One("true", "yes please")}
		}
		whole, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		result, err := (&source.Converter{Cluster: "c1"}).DecodeJSON(whole)
		if err == nil && len(result.Warnings) == 0 {
			continue // another valid policy
		}
		mistakes++
		closed, _ := result.Closed.(*snapshot.AuthorizationPolicy)
		after := slices.Delete(slices.Clone(policies), nth, nth+1)
		if closed != nil {
			after = append(after, closed)
		}
		before, then := rulesOf(t, policies), rulesOf(t, after)
		for range 40 {
			req := randomRequest(r.Random)
			switch was, is := before.permit(t, req), then.permit(t, req); {
			case !was && is:
				t.Fatalf("seed %d: %+v is permitted by %v and, with a mistake,\n%s", seed, req, modelOf(policies), whole)
			case !was:
				refused++
			case is:
				permitted++
			}
		}
	}
	if mistakes < 50 || refused < 100 || permitted < 100 {
		t.Errorf("%d mistakes; %d requests stay refused, %d stay permitted", mistakes, refused, permitted)
	}
}

// mistake changes a place in a value: a key, an item, or a value.
func (r randomPolicies) mistake(v any, depth int) any {
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		if len(keys) == 0 || r.IntN(6) == 0 {
			v[r.One("more", "unless", "rule")] = "x"
			return v
		}
		key := r.One(keys...)
		if r.IntN(5) == 0 {
			v[key+"s"] = v[key]
			delete(v, key)
			return v
		}
		v[key] = r.mistake(v[key], depth+1)
		return v
	case []any:
		if len(v) > 0 && r.IntN(3) > 0 {
			i := r.IntN(len(v))
			v[i] = r.mistake(v[i], depth+1)
			return v
		}
		if r.IntN(2) == 0 {
			return append(v, 7)
		}
		return "x"
	}
	return [...]any{7, "", nil, map[string]any{"x": "y"}, []any{"x"}}[r.IntN(5)]
}

// TestMisspeltAction: a policy whose action is not found may be one that refuses.
func TestMisspeltAction(t *testing.T) { //nolint:paralleltest // shares patterns
	for _, text := range []string{
		`{"actions":"DENY","rules":[{"to":[{"operation":{"paths":["/x"]}}]}]}`,
		`{"Action":"DENY","rules":[{"to":[{"operation":{"paths":["/x"]}}]}]}`,
	} {
		result, err := (&source.Converter{Cluster: "c1"}).DecodeJSON([]byte(`{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"namespace":"a","name":"p"},"spec":` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		closed, _ := result.Object.(*snapshot.AuthorizationPolicy)
		all := []*snapshot.AuthorizationPolicy{closed, {Meta: snapshot.Meta{Namespace: "a", Name: "q"}, Spec: &securityv1beta1.AuthorizationPolicy{Rules: []*securityv1beta1.Rule{{}}}}}
		if req := randomRequest(newRandomPolicies(1, 1).Random); rulesOf(t, all).permit(t, req) {
			t.Errorf("%s permits %+v", text, req)
		}
	}
}
