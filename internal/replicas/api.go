package replicas

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
)

const (
	// maxAnswer bounds one answer of the API server, in bytes.
	maxAnswer = 32 << 20
	// defaultPort is that of the status pages when nothing else is known.
	defaultPort = 8080
	// statusPort is the name of the container port with the status pages.
	statusPort = "http-status"
)

// podSelectors find the pods of control planes.
func podSelectors() []string { return []string{"app.kubernetes.io/name=meshctl", "app=istiod"} }

// api asks the API server of the control planes' cluster.
type api struct {
	client *http.Client
	base   *url.URL
}

func newAPI(access *rest.Config) (*api, error) {
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return &api{client, base}, nil
}

func (a *api) close() { kube.CloseIdle(a.client.Transport) }

// leases is the path of the Leases of a namespace, and of one with its name.
func leases(namespace string, name ...string) []string {
	return append([]string{"apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases"}, name...)
}

// do sends in, if any, and reads the answer into out, if any.
func (a *api) do(ctx context.Context, method string, path []string, query url.Values, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, kube.RequestTimeout)
	defer cancel()
	var body io.Reader = http.NoBody
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	target := a.base.JoinPath(path...)
	target.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return statusError(resp)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("answer of the API server: %w", err)
	}
	return nil
}

// statusError is what an API server says that went wrong.
func statusError(resp *http.Response) error {
	var st metav1.Status
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err := json.Unmarshal(text, &st); err != nil || st.Kind != "Status" {
		st = metav1.Status{
			Status: metav1.StatusFailure, Code: int32(resp.StatusCode),
			Message: fmt.Sprintf("the API server answered %s: %.200q", resp.Status, text),
		}
	}
	return &apierrors.StatusError{ErrStatus: st}
}

// announced are the replicas whose Leases are not stale.
func (a *api) announced(ctx context.Context, namespace string, now time.Time) ([]Announcement, error) {
	var list coordinationv1.LeaseList
	if err := a.do(ctx, http.MethodGet, leases(namespace), url.Values{"labelSelector": {leaseSelector}}, nil, &list); err != nil {
		return nil, fmt.Errorf("list the Leases of control planes: %w", err)
	}
	var out []Announcement
	for i := range list.Items {
		if found, err := announcementOf(&list.Items[i]); err == nil && !found.stale(now) { // what is no Lease of ours is of nobody
			out = append(out, *found)
		}
	}
	return out, nil
}

// pods are those in which a control plane runs by their labels.
func (a *api) pods(ctx context.Context, namespace string) ([]pod, error) {
	var out []pod
	for _, selector := range podSelectors() {
		var list corev1.PodList
		path := []string{"api", "v1", "namespaces", namespace, "pods"}
		if err := a.do(ctx, http.MethodGet, path, url.Values{"labelSelector": {selector}}, nil, &list); err != nil {
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
