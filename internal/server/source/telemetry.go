package source

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/parser"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/meshconfig"
)

var telemetryKind = istioKind(kind{
	group: groupTelemetry, name: "Telemetry", plural: "telemetries", versions: []string{"v1", "v1alpha1"},
	support: fields.Partly, meaning: "access logs, metrics and tracing; see [its fields](#telemetry)", fields: telemetryFields,
}, func(c *conversion, spec *telemetryv1alpha1.Telemetry) *fields.Error {
	c.object = &snapshot.Telemetry{Meta: c.meta, Kind: snapshot.KindTelemetry, Spec: spec}
	c.checkMetrics(spec.Metrics)
	return checkTelemetry(spec)
})

func checkTelemetry(t *telemetryv1alpha1.Telemetry) *fields.Error {
	return fields.AllFaults(
		attachmentFault(t),
		fields.Each("tracing", t.Tracing, meshconfig.TracingFault),
		fields.Each("metrics", t.Metrics, func(field string, m *telemetryv1alpha1.Metrics) *fields.Error {
			return fields.Each(field+".providers", m.Providers, meshconfig.ProviderNameFault)
		}),
		fields.Each("accessLogging", t.AccessLogging, func(field string, l *telemetryv1alpha1.AccessLogging) *fields.Error {
			faults := fields.Each(field+".providers", l.Providers, meshconfig.ProviderNameFault)
			if l.Filter != nil {
				if err := checkExpression(l.Filter.Expression); err != nil {
					faults = faults.And(fields.Faultf(field+".filter.expression", "%w", err))
				}
			}
			return faults
		}),
	)
}

// maxExpression bounds the bytes of an expression. maxExpressionDepth is Envoy's limit.
const (
	maxExpression      = 4 << 10
	maxExpressionDepth = 32
)

// checkExpression refuses a CEL expression that Envoy refuses, because Envoy would then
// refuse all listeners. Envoy has CEL without macros, other than has(), and without
// structures and extensions.
func checkExpression(text string) error {
	if len(text) > maxExpression {
		return fmt.Errorf("has %d bytes, at most %d are accepted", len(text), maxExpression)
	}
	p, err := parser.NewParser(parser.Macros(parser.HasMacro), parser.MaxRecursionDepth(maxExpressionDepth))
	if err != nil {
		return err
	}
	parsed, errs := p.Parse(common.NewTextSource(text))
	if list := errs.GetErrors(); len(list) > 0 {
		return fmt.Errorf("column %d: %s", list[0].Location.Column()+1, list[0].Message)
	}
	ast.PreOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if err != nil {
			return
		}
		switch e.Kind() {
		case ast.CallKind:
			err = checkCall(e.AsCall())
		case ast.StructKind:
			err = fmt.Errorf("makes a structure, which Envoy does not support")
		}
	}))
	return err
}

func checkCall(call ast.CallExpr) error {
	name := call.FunctionName()
	if _, operator := operators.FindReverse(name); operator || name == operators.Conditional || name == operators.Index {
		return nil
	}
	args, signature := call.Args(), fmt.Sprintf("%s/%d", name, len(call.Args()))
	if call.IsMemberFunction() {
		signature = "." + signature
	}
	if !strings.Contains(" "+celFunctions+" ", " "+signature+" ") {
		return fmt.Errorf("calls %s(): Envoy has no such function with %d arguments", name, len(args))
	}
	if name == "matches" && args[len(args)-1].Kind() == ast.LiteralKind {
		pattern, _ := args[len(args)-1].AsLiteral().Value().(string)
		if _, err := regexp.Compile(pattern); err != nil {
			return fmt.Errorf("%q is not a regular expression", pattern)
		}
	}
	return nil
}

// celFunctions lists Envoy's functions with the numbers of their arguments. Those with a
// dot are called on a value.
const celFunctions = `size/1 .size/0 bool/1 int/1 uint/1 double/1 bytes/1 dyn/1 type/1 duration/1 timestamp/1 ` +
	`contains/2 .contains/1 startsWith/2 .startsWith/1 endsWith/2 .endsWith/1 matches/2 .matches/1 ` +
	`.getFullYear/0 .getMonth/0 .getDate/0 .getDayOfMonth/0 .getDayOfWeek/0 .getDayOfYear/0 ` +
	`.getHours/0 .getMinutes/0 .getSeconds/0 .getMilliseconds/0 ` +
	`.getFullYear/1 .getMonth/1 .getDate/1 .getDayOfMonth/1 .getDayOfWeek/1 .getDayOfYear/1 ` +
	`.getHours/1 .getMinutes/1 .getSeconds/1 .getMilliseconds/1`

const targetGateway = "a Gateway of the Kubernetes Gateway API; a Telemetry with only other references applies to no proxy"

var telemetryFields = []fields.Field{
	{Path: "selector", Support: fields.Works},
	{Path: "targetRef", Support: fields.Partly, Meaning: targetGateway, Lacks: otherTarget},
	{Path: "targetRef.namespace", Support: fields.NoEffect, Meaning: ownGateway},
	{Path: "targetRefs", Support: fields.Partly, Meaning: targetGateway, Lacks: otherTarget},
	{Path: "targetRefs.namespace", Support: fields.NoEffect, Meaning: ownGateway},
	{Path: "accessLogging", Support: fields.Works, Meaning: "see [access-logs.md](access-logs.md#telemetry)"},
	{Path: "metrics", Support: fields.Partly, Meaning: "see [metrics.md](metrics.md)"},
	{Path: "metrics.providers", Support: fields.Works, Meaning: "providers with `prometheus`"},
	{Path: "metrics.overrides", Support: fields.Partly, Meaning: "of the metrics in [metrics.md](metrics.md)"},
	{Path: "metrics.overrides.match", Support: fields.Partly, Meaning: "`metric` and `mode`"},
	{Path: "metrics.overrides.match.metric", Support: fields.Works, Meaning: "without `GRPC_REQUEST_MESSAGES` and `GRPC_RESPONSE_MESSAGES`, which are reported"},
	{Path: "metrics.overrides.match.customMetric", Support: fields.NoEffect, Meaning: "proxies have only Istio's standard metrics"},
	{Path: "metrics.overrides.match.mode", Support: fields.Works},
	{Path: "metrics.overrides.disabled", Support: fields.Works},
	{Path: "metrics.overrides.tagOverrides", Support: fields.Works, Meaning: "with texts and with expressions of [Envoy's attributes](metrics.md#labels); others are reported"},
	{Path: "metrics.reportingInterval", Support: fields.NoEffect, Meaning: "the bytes of a TCP connection count when the connection ends"},
	{Path: "tracing", Support: fields.Works, Meaning: "see [access-logs.md](access-logs.md#tracing)"},
}
