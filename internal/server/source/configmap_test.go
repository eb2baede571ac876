package source_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// TestInjectorOfRevision: each revision has its own settings of the injector.
func TestInjectorOfRevision(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		revision, name string
		want           bool
	}{
		{"", "istio-sidecar-injector", true},
		{"default", "istio-sidecar-injector", true},
		{"", "istio-sidecar-injector-canary", false},
		{"canary", "istio-sidecar-injector-canary", true},
		{"canary", "istio-sidecar-injector", false},
	} {
		conv := &source.Converter{Cluster: "c", Revision: tc.revision}
		r, err := conv.Convert(&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Name: tc.name, Namespace: "istio-system"},
			Data:       map[string]string{"values": "{}"},
		}, snapshot.Place{})
		if _, got := r.Object.(*snapshot.InjectorSettings); err != nil || got != tc.want {
			t.Errorf("revision %q reads %s: %v %v, want %v", tc.revision, tc.name, got, err, tc.want)
		}
	}
	for _, r := range source.Watched() {
		if r.Kind == snapshot.KindInjectorSettings && r.Of("canary").Object != "istio-sidecar-injector-canary" {
			t.Errorf("watched object %s", r.Of("canary").Object)
		}
	}
}
