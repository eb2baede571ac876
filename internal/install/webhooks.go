package install

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
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
	s.add(&admissionv1.ValidatingWebhookConfiguration{
		TypeMeta:   kindOf(admissionv1.SchemeGroupVersion, "ValidatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: v.validatorName(), Labels: s.webhookLabels(nil)},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "rev.validation.istio.io", ClientConfig: s.client("/validate"),
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule: admissionv1.Rule{
					APIGroups:   []string{"security.istio.io", "networking.istio.io", "telemetry.istio.io", "extensions.istio.io"},
					APIVersions: []string{"*"}, Resources: []string{"*"}, Scope: new(admissionv1.AllScopes),
				},
			}},
			ObjectSelector: selector(rev), NamespaceSelector: selector(), MatchPolicy: new(admissionv1.Equivalent),
			// Nothing answers yet. The control plane, which then owns the field, makes it Fail.
			FailurePolicy: new(admissionv1.Ignore), SideEffects: new(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(10)),
		}},
	})
}

// addInjectors adds the webhooks of the injector, for the revision and for its tags.
func (s *set) addInjectors() {
	v := s.values
	hooks := s.injectors(v.revision())
	if v.Revision == "" {
		hooks = append(hooks, s.defaultInjectors()...)
	}
	s.addInjector(v.injectorName(), hooks, nil)
	for _, tag := range v.Tags {
		hooks := s.injectors(tag)
		if tag == mesh.DefaultRevision {
			hooks = append(hooks, s.defaultInjectors()...)
		}
		s.addInjector(v.tagName(tag), hooks, map[string]string{"istio.io/tag": tag})
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

func (s *set) addInjector(name string, hooks []admissionv1.MutatingWebhook, labels map[string]string) {
	s.add(&admissionv1.MutatingWebhookConfiguration{
		TypeMeta:   kindOf(admissionv1.SchemeGroupVersion, "MutatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: s.webhookLabels(labels)},
		Webhooks:   hooks,
	})
}

func (s *set) webhookLabels(more map[string]string) map[string]string {
	return joined(map[string]string{"app": "sidecar-injector", labelRevision: s.values.revision()}, more)
}

// injectors returns the webhooks for namespaces and pods with a value of istio.io/rev.
func (s *set) injectors(rev string) []admissionv1.MutatingWebhook {
	isRev := exists(labelRevision, metav1.LabelSelectorOpIn, rev)
	notFalse := exists(labelInject, metav1.LabelSelectorOpNotIn, "false")
	noRev, noNamespace := exists(labelRevision, metav1.LabelSelectorOpDoesNotExist), exists(labelInjectNamespace, metav1.LabelSelectorOpDoesNotExist)
	return []admissionv1.MutatingWebhook{
		s.injector("rev.namespace.", selector(isRev, noNamespace), selector(notFalse)),
		s.injector("rev.object.", selector(noRev, noNamespace), selector(notFalse, isRev)),
	}
}

// defaultInjectors returns the webhooks for istio-injection=enabled and for labeled pods.
func (s *set) defaultInjectors() []admissionv1.MutatingWebhook {
	noRev := exists(labelRevision, metav1.LabelSelectorOpDoesNotExist)
	return []admissionv1.MutatingWebhook{
		s.injector("namespace.", selector(exists(labelInjectNamespace, metav1.LabelSelectorOpIn, "enabled")),
			selector(exists(labelInject, metav1.LabelSelectorOpNotIn, "false"))),
		s.injector("object.", selector(exists(labelInjectNamespace, metav1.LabelSelectorOpDoesNotExist), noRev),
			selector(exists(labelInject, metav1.LabelSelectorOpIn, "true"), noRev)),
	}
}

// injector returns a webhook. Every one selects a label, so an absent control plane stops
// no other pod.
func (s *set) injector(prefix string, namespaces, objects *metav1.LabelSelector) admissionv1.MutatingWebhook {
	return admissionv1.MutatingWebhook{
		Name: prefix + injectorDomain, ClientConfig: s.injectorClient(),
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: new(admissionv1.AllScopes),
			},
		}},
		NamespaceSelector: namespaces, ObjectSelector: objects, MatchPolicy: new(admissionv1.Equivalent),
		FailurePolicy: new(admissionv1.Fail), ReinvocationPolicy: new(admissionv1.NeverReinvocationPolicy),
		SideEffects: new(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(10)),
	}
}

// injectorClient returns how the API server reaches the injector.
func (s *set) injectorClient() admissionv1.WebhookClientConfig {
	if !s.values.Remote.Enabled {
		return s.client("/inject")
	}
	client := s.client(s.values.injectionPath())
	if !s.values.remoteIP().IsValid() {
		client.Service.Port = new(int32(mesh.PortWebhooks)) // the API server calls the external name at this port
	}
	return client
}

func (s *set) client(path string) admissionv1.WebhookClientConfig {
	return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{
		Name: s.values.suffixed(istiod), Namespace: s.values.Namespace, Path: new(path), Port: new(int32(443)),
	}}
}

func selector(expressions ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: expressions}
}

func exists(key string, operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values}
}
