package install

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	labelInject          = "sidecar.istio.io/inject"
	labelInjectNamespace = "istio-injection"
	injectorDomain       = "sidecar-injector.istio.io"
)

// addWebhooks adds the configurations of the injector and of the validation. They have no
// caBundle: the control plane writes it, and owns that field.
func (s *set) addWebhooks() {
	s.addInjectors()
	v := s.values
	rev := exists(labelRevision, metav1.LabelSelectorOpIn, v.revision())
	if v.Revision == "" {
		rev = exists(labelRevision, metav1.LabelSelectorOpNotIn, v.Tags...)
		if len(v.Tags) == 0 {
			rev = exists(labelRevision, metav1.LabelSelectorOpDoesNotExist)
		}
	}
	// Nothing answers yet. The control plane, which then owns the field, makes it Fail.
	hook := webhook("rev.validation.istio.io", s.client("/validate"), "Ignore", selector(), selector(rev))
	hook["rules"] = []fields{{
		"operations":  []string{"CREATE", "UPDATE"},
		"apiGroups":   []string{"security.istio.io", "networking.istio.io", "telemetry.istio.io", "extensions.istio.io"},
		"apiVersions": []string{"*"}, "resources": []string{"*"}, "scope": "*",
	}}
	s.addHooks("ValidatingWebhookConfiguration", v.validatorName(), []fields{hook}, nil)
}

// addInjectors adds the webhooks of the injector, for the revision and for its tags.
func (s *set) addInjectors() {
	v := s.values
	hooks := s.injectors(v.revision())
	if v.Revision == "" {
		hooks = append(hooks, s.defaultInjectors()...)
	}
	s.addHooks(injectorKind, v.injectorName(), hooks, nil)
	for _, tag := range v.Tags {
		hooks := s.injectors(tag)
		if tag == mesh.DefaultRevision {
			hooks = append(hooks, s.defaultInjectors()...)
		}
		s.addHooks(injectorKind, v.tagName(tag), hooks, map[string]string{"istio.io/tag": tag})
	}
}

// webhookNames returns the names of all webhook configurations.
func (v *Values) webhookNames() []string {
	return slices.Insert(v.injectorNames(), 1, v.validatorName())
}

// injectorNames returns the names of the webhook configurations of the injector.
func (v *Values) injectorNames() []string {
	names := []string{v.injectorName()}
	for _, tag := range v.Tags {
		names = append(names, v.tagName(tag))
	}
	return names
}

func (v *Values) injectorName() string      { return v.ofNamespace(v.suffixed(mesh.InjectorConfigMap)) }
func (v *Values) tagName(tag string) string { return v.ofNamespace("istio-revision-tag-" + tag) }
func (v *Values) validatorName() string     { return v.suffixed("istio-validator") + "-" + v.Namespace }

// ofNamespace returns the name of a webhook configuration, which has no namespace.
func (v *Values) ofNamespace(name string) string {
	if v.Namespace != mesh.DefaultSystemNamespace {
		name += "-" + v.Namespace
	}
	return name
}

const injectorKind = "MutatingWebhookConfiguration"

// addHooks adds a webhook configuration, with labels besides the common ones.
func (s *set) addHooks(kind, name string, hooks []fields, labels map[string]string) {
	configuration := newObject("admissionregistration.k8s.io/v1", kind, metav1.ObjectMeta{
		Name: name, Labels: joined(map[string]string{"app": "sidecar-injector", labelRevision: s.values.revision()}, labels),
	}, nil)
	configuration.Webhooks = hooks
	s.add(configuration)
}

// webhook returns a webhook without rules.
func webhook(name string, client fields, failurePolicy string, namespaces, objects *metav1.LabelSelector) fields {
	return fields{
		"name": name, "clientConfig": client, "namespaceSelector": namespaces, "objectSelector": objects,
		"matchPolicy": "Equivalent", "failurePolicy": failurePolicy, "sideEffects": "None",
		"admissionReviewVersions": []string{"v1"}, "timeoutSeconds": 10,
	}
}

// injectors returns the webhooks for namespaces and pods with a value of istio.io/rev.
func (s *set) injectors(rev string) []fields {
	isRev := exists(labelRevision, metav1.LabelSelectorOpIn, rev)
	notFalse := exists(labelInject, metav1.LabelSelectorOpNotIn, "false")
	noRev, noNamespace := exists(labelRevision, metav1.LabelSelectorOpDoesNotExist), exists(labelInjectNamespace, metav1.LabelSelectorOpDoesNotExist)
	return []fields{
		s.injector("rev.namespace.", selector(isRev, noNamespace), selector(notFalse)),
		s.injector("rev.object.", selector(noRev, noNamespace), selector(notFalse, isRev)),
	}
}

// defaultInjectors returns the webhooks for istio-injection=enabled and for labeled pods.
func (s *set) defaultInjectors() []fields {
	noRev := exists(labelRevision, metav1.LabelSelectorOpDoesNotExist)
	return []fields{
		s.injector("namespace.", selector(exists(labelInjectNamespace, metav1.LabelSelectorOpIn, "enabled")),
			selector(exists(labelInject, metav1.LabelSelectorOpNotIn, "false"))),
		s.injector("object.", selector(exists(labelInjectNamespace, metav1.LabelSelectorOpDoesNotExist), noRev),
			selector(exists(labelInject, metav1.LabelSelectorOpIn, "true"), noRev)),
	}
}

// injector returns a webhook. Every one selects a label, so an absent control plane stops
// no other pod.
func (s *set) injector(prefix string, namespaces, objects *metav1.LabelSelector) fields {
	path := "/inject"
	if s.values.Remote.Enabled {
		path = s.values.injectionPath()
	}
	hook := webhook(prefix+injectorDomain, s.client(path), "Fail", namespaces, objects)
	hook["reinvocationPolicy"] = "Never"
	hook["rules"] = []fields{{
		"operations": []string{"CREATE"}, "apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"pods"}, "scope": "*",
	}}
	return hook
}

// client returns how the API server reaches a path of the control plane.
func (s *set) client(path string) fields {
	port := 443
	if s.values.Remote.Enabled && !s.values.remoteIP().IsValid() {
		port = mesh.PortWebhooks // the API server calls the external name at this port
	}
	return fields{"service": fields{"name": s.values.suffixed(istiod), "namespace": s.values.Namespace, "path": path, "port": port}}
}

func selector(expressions ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: expressions}
}

func exists(key string, operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values}
}
