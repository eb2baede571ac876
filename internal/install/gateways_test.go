package install

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestGatewaysWithOwnNames: the kind of a gateway in an IstioOperator, not its name, decides about
// its labels, its Service and its ports, as in Istio.
func TestGatewaysWithOwnNames(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec   string
		labels map[string]string
		kind   corev1.ServiceType
		ports  int
	}{
		"ingress": {
			"components: {ingressGateways: [{name: public}]}",
			map[string]string{"app": "istio-ingressgateway", "istio": "ingressgateway"},
			corev1.ServiceTypeLoadBalancer, 3,
		},
		"egress": {
			"components: {egressGateways: [{name: partners}]}",
			map[string]string{"app": "istio-egressgateway", "istio": "egressgateway"},
			corev1.ServiceTypeClusterIP, 2,
		},
		"own labels": {
			"components: {egressGateways: [{name: partners, label: {istio: partners}}]}",
			map[string]string{"app": "istio-egressgateway", "istio": "partners"},
			corev1.ServiceTypeClusterIP, 2,
		},
		"egress with the name of an ingress": {
			"components: {egressGateways: [{name: istio-ingressgateway}]}",
			map[string]string{"app": "istio-egressgateway", "istio": "egressgateway"},
			corev1.ServiceTypeClusterIP, 2,
		},
		"own type": {
			"components: {egressGateways: [{name: partners, k8s: {service: {type: LoadBalancer}}}]}",
			map[string]string{"app": "istio-egressgateway", "istio": "egressgateway"},
			corev1.ServiceTypeLoadBalancer, 2,
		},
		"east-west": {
			"components: {ingressGateways: [{name: istio-eastwestgateway, label: {topology.istio.io/network: n1}}]}",
			map[string]string{"app": "istio-eastwestgateway", "istio": "eastwestgateway", "topology.istio.io/network": "n1"},
			corev1.ServiceTypeLoadBalancer, 3,
		},
	} {
		v := Default(testImage)
		if _, err := v.Read("f", []byte("kind: IstioOperator\nspec: {"+tc.spec+"}")); err != nil || len(v.Gateways) != 1 {
			t.Errorf("%s: %v: %v", name, err, v.Gateways)
			continue
		}
		g := v.Gateways[0]
		if diff := cmp.Diff(tc.labels, g.Labels); diff != "" || g.ServiceType != tc.kind || len(g.Ports) != tc.ports {
			t.Errorf("%s: Service of type %s with %d ports, labels (-want +got):\n%s", name, g.ServiceType, len(g.Ports), diff)
		}
	}
}
