package analyze_test

import (
	"testing"

	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// TestOfAPIs: each reason of a problem has the code of its kind.
func TestOfAPIs(t *testing.T) {
	t.Parallel()
	key := snapshot.Key{Kind: snapshot.KindEnvoyFilter, Namespace: "shop", Name: "limits"}
	found := analyze.OfAPIs([]kube.Problem{
		{Object: "secrets", Reasons: []string{"forbidden"}},
		{Object: fields.ObjectName(key), Key: key, Reasons: []string{"a", "b", "c"}, Kinds: []fields.ProblemKind{fields.Refused, fields.WrongAdd, fields.UnknownAnnotation}},
	})
	want := []codes.Code{codes.Unreadable, codes.SchemaValidationError, codes.EnvoyFilterUsesAddOperationIncorrectly, codes.UnknownAnnotation}
	if len(found) != len(want) {
		t.Fatalf("got %+v", found)
	}
	for i, code := range want {
		if found[i].Code != code {
			t.Errorf("%q has the code %s, want %s", found[i].Message, found[i].Code, code)
		}
	}
}
