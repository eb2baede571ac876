package installcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
)

const (
	// answerTimeout is the longest wait for the answer of a control plane.
	answerTimeout = 30 * time.Second
	// staleAfter is the time that a proxy has to answer.
	staleAfter = 30 * time.Second
	// maxPods bounds the pods that are compared with the connected proxies.
	maxPods = 50_000
)

const (
	labelRevision   = "istio.io/rev"
	annotationState = "sidecar.istio.io/status"
)

// checkProxies returns the faults of control planes that do not answer, of proxies that
// refuse their configuration, and of injected pods whose proxy is not connected.
func checkProxies(ctx context.Context, env *cli.Env, c *apply.Cluster, access *kube.Access, namespace string) ([]apply.Finding, error) {
	found, err := replicas.Find(ctx, replicas.Options{
		Access: access.Config, Namespace: namespace, Tokens: (&cli.TokenFlag{}).Tokens(env), Timeout: answerTimeout, Now: env.Now,
	})
	if errors.Is(err, replicas.ErrNone) {
		return nil, nil // its Deployment is a finding
	}
	if err != nil {
		return nil, fmt.Errorf("%s: find control planes: %w", c.Name, err)
	}
	found = slices.DeleteFunc(found, func(r *replicas.Replica) bool {
		other := errors.Is(r.Err, replicas.ErrOtherCluster)
		if other {
			env.Notef("control plane %s and its proxies are not checked: %v", r.Name, r.Err)
		}
		return other
	})
	if len(found) == 0 {
		return nil, nil
	}
	defer cli.CloseReplicas(found)
	reports := cli.AskProxies(ctx, found)
	out := checkRemoteClusters(ctx, found, access.Context)
	silent := false
	for i := range reports {
		kind, hint := "proxy ", "see meshctl xds nacks"
		if reports[i].Error != "" {
			kind, hint, silent = "control plane ", "see its log", true
		}
		for _, line := range reports[i].Wrong(staleAfter) {
			object, fault, _ := strings.Cut(line, ": ")
			out = append(out, apply.Finding{Level: apply.Error, Object: kind + object, Fault: fault, Hint: hint})
		}
	}
	if silent {
		return out, nil // the missing proxies may be connected there
	}
	more, err := unconnected(ctx, c, reports)
	return append(out, more...), err
}

// unconnected returns the faults of running pods that an installation of the cluster has
// injected and that no control plane knows. Applications that use gRPC without a proxy connect
// only when they make a connection.
func unconnected(ctx context.Context, c *apply.Cluster, reports []proxystatus.Report) ([]apply.Finding, error) {
	deployments, err := c.API.ListAny(ctx, schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, "", install.LabelInstallation+",app=istiod", maxPods)
	if err != nil {
		return nil, fmt.Errorf("%s: list control planes: %w", c.Name, err)
	}
	var revisions []string
	for i := range deployments {
		revisions = append(revisions, deployments[i].GetLabels()[labelRevision])
	}
	pods, err := c.API.ListAny(ctx, install.PodKind, "", mesh.LabelCanonicalName, maxPods)
	if err != nil {
		return nil, fmt.Errorf("%s: list pods: %w", c.Name, err)
	}
	connected := cli.ProxyNames(reports)
	var out []apply.Finding
	for i := range pods {
		p := &pods[i]
		name := p.GetName() + "." + p.GetNamespace()
		status, _ := p.Object["status"].(map[string]any)
		if _, known := slices.BinarySearch(connected, name); known || status["phase"] != "Running" || p.GetDeletionTimestamp() != nil ||
			p.GetAnnotations()[annotationState] == "" || mesh.IsProxyless(p.GetAnnotations()) || !slices.Contains(revisions, p.GetAnnotations()[labelRevision]) {
			continue
		}
		out = append(out, apply.Finding{
			Level: apply.Error, Object: install.Ref(p), Fault: "its proxy is connected to no control plane of the cluster",
			Hint: fmt.Sprintf("kubectl -n %s logs %s -c istio-proxy", p.GetNamespace(), p.GetName()),
		})
	}
	return out, nil
}
