package facts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// RouteProblem is a fault of a VirtualService that only other objects show, such as a
// destination that does not exist.
type RouteProblem struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Problem   string `json:"problem"`

	Kind          ProblemKind `json:"-"`
	Field, Refers string      `json:"-"` // see Problem
}

// routeFault is the part of a RouteProblem that one VirtualService shows.
type routeFault struct {
	kind                ProblemKind
	field, refers, text string
}

func (p RouteProblem) String() string {
	return "VirtualService " + p.Namespace + "/" + p.Name + ": " + p.Problem
}

// maxRouteProblems bounds the number of problems that are kept.
const maxRouteProblems = 1000

// findRouteProblems returns the problems of all VirtualServices.
func (t *Tables) findRouteProblems(r *derive.Reads) []RouteProblem {
	var out []RouteProblem
	for key, v := range t.allRouted.Lookup(r, struct{}{}) {
		for i, name := range v.Gateways {
			namespace, gateway, _ := strings.Cut(name, "/")
			if _, ok := t.gateways.Get(r, ObjectKey{key.Cluster, namespace, gateway}); !ok && name != snapshot.MeshGateway {
				out = append(out, RouteProblem{v.Namespace, v.Name, "Gateway " + name + " does not exist", MissingReference, fmt.Sprintf("spec.gateways[%d]", i), ""})
			}
		}
		for _, p := range v.problems {
			out = append(out, RouteProblem{v.Namespace, v.Name, p.text, p.kind, p.field, p.refers})
		}
	}
	slices.SortFunc(out, RouteProblem.Compare)
	return out[:min(len(out), maxRouteProblems)]
}

// Compare orders problems.
func (p RouteProblem) Compare(other RouteProblem) int {
	return cmp.Or(strings.Compare(p.Namespace, other.Namespace), strings.Compare(p.Name, other.Name), strings.Compare(p.Problem, other.Problem))
}
