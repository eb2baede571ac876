package install

import (
	corev1 "k8s.io/api/core/v1"
)

// InputsKey is the key of the text in the ConfigMap with the inputs of an installation.
const InputsKey = "inputs.yaml"

// InputsName returns the name of the ConfigMap with what an installation was made from, in the
// namespace of the control plane.
func InputsName(installation string) string { return "inputs-" + installation }

// addInputs adds the ConfigMap with the inputs.
func (s *set) addInputs() {
	if s.values.Inputs == "" {
		return
	}
	s.add(&corev1.ConfigMap{
		TypeMeta: kindOf(corev1.SchemeGroupVersion, "ConfigMap"), ObjectMeta: s.meta(InputsName(s.values.Installation()), nil),
		Data: map[string]string{InputsKey: s.values.Inputs},
	})
}
