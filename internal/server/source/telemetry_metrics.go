package source

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/parser"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// maxTags bounds the labels that an override sets or removes: Envoy evaluates their expressions for
// each call.
const maxTags = 50

// checkMetrics removes the overrides of labels that Envoy cannot have, with warnings. Envoy would
// refuse all listeners for a wrong expression. It also warns about metrics that proxies do not have.
func (c *conversion) checkMetrics(metrics []*telemetryv1alpha1.Metrics) {
	warn := func(w *fields.Error) {
		if !c.Remote {
			c.warn(w)
		}
	}
	for i, m := range metrics {
		for j, o := range m.GetOverrides() {
			field := fields.At(fields.At("spec.metrics", i)+".overrides", j)
			if metric := o.GetMatch().GetMetric(); metric == telemetryv1alpha1.MetricSelector_GRPC_REQUEST_MESSAGES || metric == telemetryv1alpha1.MetricSelector_GRPC_RESPONSE_MESSAGES {
				warn(fields.WithoutEffect(field, "proxies do not count the messages of gRPC"))
			}
			for n, label := range slices.Sorted(maps.Keys(o.GetTagOverrides())) {
				err := checkTag(label, o.TagOverrides[label])
				if n >= maxTags {
					err = fmt.Errorf("at most %d labels are accepted", maxTags)
				}
				if err == nil {
					continue
				}
				delete(o.TagOverrides, label)
				warn(fields.Faultf(field+".tagOverrides."+fields.FieldOf(label), "has no effect: %w", err))
			}
		}
	}
}

// checkTag checks an override of a label.
func checkTag(label string, t *telemetryv1alpha1.MetricsOverrides_TagOverride) error {
	switch {
	case !mesh.IsMetricLabel(label):
		return fmt.Errorf("%q is not the name of a label: want letters, digits and '_'", label)
	case label == "le":
		return fmt.Errorf("the label le belongs to histograms")
	case len(label) > maxExpression:
		return fmt.Errorf("the name of the label has %d bytes, at most %d are accepted", len(label), maxExpression)
	case t.GetOperation() == telemetryv1alpha1.MetricsOverrides_TagOverride_REMOVE:
		return nil
	case t.GetOperation() != telemetryv1alpha1.MetricsOverrides_TagOverride_UPSERT:
		return fmt.Errorf("want the operation UPSERT or REMOVE")
	case t.GetValue() == "":
		return fmt.Errorf("value is missing")
	}
	return checkTagExpression(t.GetValue())
}

// checkTagExpression checks the value of a label. Envoy finds its end by a percent sign.
func checkTagExpression(text string) error {
	if err := checkExpression(text); err != nil {
		return err
	}
	if _, is := snapshot.QuotedText(text); is {
		return nil
	}
	if strings.ContainsAny(text, "%\r\n") {
		return fmt.Errorf("an expression other than a text in quotes cannot contain '%%' and line breaks")
	}
	p, err := parser.NewParser(parser.Macros(parser.HasMacro), parser.MaxRecursionDepth(maxExpressionDepth))
	if err != nil {
		return err
	}
	parsed, _ := p.Parse(common.NewTextSource(text)) // checkExpression has found the errors
	ast.PreOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.IdentKind && err == nil && !slices.Contains(celRoots, e.AsIdent()) {
			err = fmt.Errorf("envoy has no attribute %s", e.AsIdent())
		}
	}))
	return err
}

// celRoots lists the first parts of the names of Envoy's attributes.
var celRoots = strings.Fields("request response connection upstream source destination metadata filter_state upstream_filter_state xds")
