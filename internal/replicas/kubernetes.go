package replicas

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// defaultPort is the port of the status pages if no other is known.
	defaultPort = 8080
	// statusPort is the name of the container port with the status pages.
	statusPort = "http-status"
)

func podSelectors() []string { return []string{"app.kubernetes.io/name=meshctl", "app=istiod"} }

// pod is a pod in which a replica may run.
type pod struct {
	namespace, name string
	port            uint16
	configCluster   mesh.ClusterID // that the replica reads, empty for its own
}

// newAPI returns a client of the API server of the control planes' cluster.
func newAPI(access *rest.Config) (*kube.Client, error) {
	access = rest.CopyConfig(access)
	access.Timeout = kube.RequestTimeout
	return kube.NewClient(access)
}

// AnnouncedBy is Announced with a client of the API.
func AnnouncedBy(ctx context.Context, api *kube.Client, namespace string, now time.Time) ([]Announcement, error) {
	list, err := api.Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: LeaseSelector})
	if err != nil {
		return nil, fmt.Errorf("list the Leases of control planes: %w", err)
	}
	var out []Announcement
	for i := range list.Items {
		if found, err := announcementOf(&list.Items[i]); err == nil && !found.stale(now) { // others may write Leases with the label
			out = append(out, *found)
		}
	}
	if len(out) > maxReplicas {
		return out, nil
	}
	return withPods(ctx, api, out), nil
}

// withPods returns the announcements without those whose pod has ended: its Lease counts for some time
// if it could not delete it.
func withPods(ctx context.Context, api *kube.Client, list []Announcement) []Announcement {
	gone := make([]bool, len(list))
	var asked sync.WaitGroup
	for i := range list {
		if namespace, name, ok := strings.Cut(list[i].Pod, "/"); ok {
			asked.Go(func() {
				p, err := api.Pods(namespace).Get(ctx, name)
				gone[i] = apierrors.IsNotFound(err) || err == nil && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
			})
		}
	}
	asked.Wait()
	var out []Announcement
	for i := range list {
		if !gone[i] {
			out = append(out, list[i])
		}
	}
	return out
}

// podsIn returns the running pods with the labels of control planes.
func podsIn(ctx context.Context, api *kube.Client, namespace string) ([]pod, error) {
	var out []pod
	for _, selector := range podSelectors() {
		list, err := api.Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil, fmt.Errorf("list the pods of control planes: %w", err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				out = append(out, pod{namespace: namespace, name: p.Name, port: statusPortOf(p), configCluster: mesh.ClusterID(p.Annotations[mesh.AnnotationConfigCluster])})
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
