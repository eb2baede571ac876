package replicas

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
)

const (
	// defaultPort is the port of the status pages if no other is known.
	defaultPort = 8080
	// statusPort is the name of the container port with the status pages.
	statusPort = "http-status"
)

// podSelectors select the pods of control planes.
func podSelectors() []string { return []string{"app.kubernetes.io/name=meshctl", "app=istiod"} }

// pod is a pod in which a replica may run.
type pod struct {
	namespace, name string
	port            uint16
}

// api is a client of the API server of the control planes' cluster.
type api struct {
	*kube.Client
	http *http.Client
}

func newAPI(access *rest.Config) (*api, error) {
	access = rest.CopyConfig(access)
	access.Timeout = kube.RequestTimeout
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	made, err := kube.NewClientWith(access, client)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return &api{made, client}, nil
}

func (a *api) close() { kube.CloseIdle(a.http.Transport) }

// announced returns the announcements in Leases that are not stale.
func (a *api) announced(ctx context.Context, namespace string, now time.Time) ([]Announcement, error) {
	list, err := a.Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: leaseSelector})
	if err != nil {
		return nil, fmt.Errorf("list the Leases of control planes: %w", err)
	}
	var out []Announcement
	for i := range list.Items {
		if found, err := announcementOf(&list.Items[i]); err == nil && !found.stale(now) { // others may write Leases with the label
			out = append(out, *found)
		}
	}
	return out, nil
}

// pods returns the running pods with the labels of control planes.
func (a *api) pods(ctx context.Context, namespace string) ([]pod, error) {
	var out []pod
	for _, selector := range podSelectors() {
		pods := kube.ObjectsOf[corev1.Pod, corev1.PodList](a.Client, corev1.SchemeGroupVersion, "pods", namespace)
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil, fmt.Errorf("list the pods of control planes: %w", err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				out = append(out, pod{namespace: namespace, name: p.Name, port: statusPortOf(p)})
			}
		}
	}
	slices.SortFunc(out, func(a, b pod) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(out, func(a, b pod) bool { return a.name == b.name }), nil
}

func statusPortOf(p *corev1.Pod) uint16 {
	for i := range p.Spec.Containers {
		for _, port := range p.Spec.Containers[i].Ports {
			if port.Name == statusPort && port.ContainerPort > 0 && port.ContainerPort <= 65535 {
				return uint16(port.ContainerPort)
			}
		}
	}
	return defaultPort
}
