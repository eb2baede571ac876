package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// balanceInterval is how often the load balancer looks for Services.
const balanceInterval = 500 * time.Millisecond

// loadBalancerAddresses returns the addresses that Services of the type LoadBalancer may get in
// a cluster.
func loadBalancerAddresses(cluster int) []string {
	var out []string
	for i := 1; i <= 20; i++ {
		out = append(out, fmt.Sprintf("10.89.0.%d", 50*cluster+i))
	}
	return out
}

// balancer gives Services of the type LoadBalancer addresses of the node. kube-proxy
// forwards the connections to these addresses.
type balancer struct {
	client    dynamic.NamespaceableResourceInterface
	addresses []string
}

func (n *node) balancer() (*balancer, error) {
	ca, err := os.ReadFile(n.path("certs/apiserver.crt"))
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(&rest.Config{
		Host: "https://" + n.api(), BearerToken: n.Token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, Timeout: requestTimeout,
	})
	if err != nil {
		return nil, err
	}
	return &balancer{client.Resource(corev1.SchemeGroupVersion.WithResource("services")), n.LBs}, nil
}

// run assigns addresses until the context ends. After a failure it tries again.
func (b *balancer) run(ctx context.Context) {
	tick := time.NewTicker(balanceInterval)
	defer tick.Stop()
	for {
		if err := b.assign(ctx); err != nil {
			log.Println("load balancer:", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// assign gives each Service without an address one that no other Service has.
func (b *balancer) assign(ctx context.Context) error {
	list, err := b.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	free := slices.Clone(b.addresses)
	var waiting []corev1.Service
	for _, item := range list.Items {
		var s corev1.Service
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &s); err != nil {
			return err
		}
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) == 0 {
			waiting = append(waiting, s)
		}
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			free = slices.DeleteFunc(free, func(a string) bool { return a == ingress.IP })
		}
	}
	for _, s := range waiting {
		if len(free) == 0 {
			return fmt.Errorf("Service %s/%s waits: all %d addresses are in use", s.Namespace, s.Name, len(b.addresses)) //nolint:staticcheck // a kind
		}
		patch, err := json.Marshal(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Service",
			"status": map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": free[0]}}}},
		}})
		if err != nil {
			return err
		}
		if _, err := b.client.Namespace(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("Service %s/%s: %w", s.Namespace, s.Name, err) //nolint:staticcheck // a kind
		}
		free = free[1:]
	}
	return nil
}
