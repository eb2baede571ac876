package source

import (
	"maps"
	"slices"

	networkingv1beta1 "istio.io/api/networking/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/meshctl/meshctl/internal/proxysettings"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var proxyConfigKind = istioKind(kind{
	group: groupNetworking, name: "ProxyConfig", plural: "proxyconfigs", versions: []string{"v1beta1"},
	support: fields.Partly, meaning: "settings of pods that are injected later; see [injection.md](injection.md#proxyconfig)", fields: proxyConfigFields,
}, func(c *conversion, spec *networkingv1beta1.ProxyConfig) *fields.Error {
	c.object = &snapshot.ProxyConfig{Meta: c.meta, Kind: snapshot.KindProxyConfig, Spec: spec}
	return checkProxyConfig(spec)
})

// maxConcurrency and maxVariable bound the worker threads of a proxy, and the bytes of a
// variable, as the agent and Istio's CRD do.
const (
	maxConcurrency = proxysettings.MaxConcurrency
	maxVariable    = 2048
)

func checkProxyConfig(p *networkingv1beta1.ProxyConfig) *fields.Error {
	var faults *fields.Error
	faults = faults.And(fields.LabelsFault("selector.matchLabels", p.GetSelector().GetMatchLabels()))
	if n := p.GetConcurrency().GetValue(); n < 0 || n > maxConcurrency {
		faults = faults.And(fields.Faultf("concurrency", "is %d: want 0 (one thread a core) to %d", n, maxConcurrency))
	}
	for _, name := range slices.Sorted(maps.Keys(p.EnvironmentVariables)) {
		field := "environmentVariables[" + name + "]"
		if len(validation.IsEnvVarName(name)) > 0 {
			faults = faults.And(fields.Faultf(field, "%q is not the name of a variable: want letters, digits, '_', '-' and '.', no digit first", name))
		}
		if n := len(p.EnvironmentVariables[name]); n > maxVariable {
			faults = faults.And(fields.Faultf(field, "has %d bytes: want at most %d", n, maxVariable))
		}
	}
	return faults
}

var proxyConfigFields = []fields.Field{
	{Path: "selector", Support: fields.Works, Meaning: "it selects only pods of its own namespace, even if this is the root namespace, as in Istio"},
	{Path: "concurrency", Support: fields.Works, Meaning: "for pods that are injected later"},
	{Path: "environmentVariables", Support: fields.Works, Meaning: "for pods that are injected later"},
	{Path: "image", Support: fields.NoEffect, Meaning: "the image of the proxy has one variant"},
}
