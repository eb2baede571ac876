package inject

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// TestAnnotationsAreKnown: an annotation that injection reads is not reported as unknown or
// misplaced, at a pod and at the pods of a Deployment.
func TestAnnotationsAreKnown(t *testing.T) {
	t.Parallel()
	for _, k := range annotations {
		for _, object := range []string{
			"apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b, annotations: {NAME: x}}\n",
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: b}\nspec: {template: {metadata: {annotations: {NAME: x}}}}\n",
		} {
			doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(strings.ReplaceAll(object, "NAME", k.name)), Line: 1})
			if err != nil {
				t.Fatal(err)
			}
			r, err := (&source.Converter{Cluster: "c"}).Decode(doc, snapshot.Place{})
			if err != nil || len(r.Warnings) > 0 {
				t.Errorf("%s: %v, %v", k.name, r.Warnings, err)
			}
		}
	}
}
