package installcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/jwks"
	"github.com/meshctl/meshctl/internal/server/xds"
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

// controlPlanes is what the control planes of a cluster report.
type controlPlanes struct {
	replicas []*replicas.Replica // closed
	reports  []proxystatus.Report
	nacks    []cli.Answer[xds.NACKs]
	keySets  []cli.Answer[[]jwks.Status]
	cas      []cli.Answer[ca.Page]
	clusters []cli.Answer[clusters.Page]
}

// ask asks the control planes for all that the checks need, at the same time. The reports have the
// errors.
func (p *controlPlanes) ask(ctx context.Context) {
	var running sync.WaitGroup
	var flags cli.ReplicaFlags
	running.Go(func() { p.reports = cli.AskProxies(ctx, p.replicas) })
	running.Go(func() { p.nacks, _ = cli.AskPages[xds.NACKs](ctx, &flags, p.replicas, "xds/nacks", nil, nil) })
	running.Go(func() { p.keySets, _ = cli.AskPages[[]jwks.Status](ctx, &flags, p.replicas, "keysets", nil, nil) })
	running.Go(func() { p.cas, _ = cli.AskPages[ca.Page](ctx, &flags, p.replicas, "certs", nil, nil) })
	running.Go(func() { p.clusters, _ = cli.AskPages[clusters.Page](ctx, &flags, p.replicas, "clusters", nil, nil) })
	running.Wait()
}

// keySetFaults returns a function for analyze.Options.KeySet of the cluster.
func (p *controlPlanes) keySetFaults() func(snapshot.KeySource) (fault string, kept bool) {
	var all []jwks.Status
	for _, a := range p.keySets {
		all = append(all, a.Value...)
	}
	faults := jwks.Faults(all)
	return func(source snapshot.KeySource) (string, bool) {
		fault, kept := faults(source)
		return proxystatus.OneLine(fault), kept
	}
}

// checkControlPlanes finds the faults of control planes that do not answer, of their CAs, of proxies
// that refuse their configuration, and of injected pods whose proxy is not connected.
func checkControlPlanes(ctx context.Context, env *cli.Env, c *apply.Cluster, access *kube.Access, namespace, flags string) (st clusterState) {
	found, err := replicas.Find(ctx, replicas.Options{
		Access: access.Config, Namespace: namespace, Tokens: (&cli.TokenFlag{}).Tokens(env), Timeout: answerTimeout, Now: env.Now,
	})
	if errors.Is(err, replicas.ErrNone) {
		return st // its Deployment is a finding
	}
	if err != nil {
		st.unread = append(st.unread, fmt.Errorf("%s: find control planes: %w", c.Name, err))
		return st
	}
	defer cli.CloseReplicas(found)
	st.planes.replicas = slices.DeleteFunc(found, func(r *replicas.Replica) bool {
		other := errors.Is(r.Err, replicas.ErrOtherCluster)
		if other {
			st.notes = append(st.notes, fmt.Sprintf("control plane %s and its proxies are not checked: %v", r.Name, r.Err))
		}
		return other
	})
	if len(st.planes.replicas) == 0 {
		return st
	}
	st.planes.ask(ctx)
	var silent bool
	if st.found, silent = st.planes.wrongProxies(flags); !silent { // else the missing proxies may be connected there
		more, err := unconnected(ctx, c, st.planes.reports)
		if st.found = append(st.found, more...); err != nil {
			st.unread = append(st.unread, err)
		}
	}
	st.found = append(st.found, st.planes.wrongCAs(env.Now(), flags)...)
	st.found = append(st.found, st.planes.wrongClusters(access.Context)...)
	return st
}

// wrongProxies returns the faults of control planes that do not answer, and of proxies that refuse
// configuration or do not answer. silent reports whether a control plane does not answer.
func (p *controlPlanes) wrongProxies(flags string) (out []apply.Finding, silent bool) {
	out = refusals(p.nacks, flags)
	for i := range p.reports {
		r := &p.reports[i]
		object, hint := "proxy ", withFlags("meshctl xds nacks", flags)
		if r.Error != "" {
			object, hint, silent = "control plane ", "see its log", true
		} else if slices.ContainsFunc(p.nacks, func(a cli.Answer[xds.NACKs]) bool { return a.Replica == p.replicas[i].Name }) {
			r = withoutRefusals(r)
		}
		for _, line := range r.Wrong(staleAfter) {
			name, fault, _ := strings.Cut(line, ": ")
			out = append(out, apply.Finding{Level: apply.Error, Object: object + name, Fault: fault, Hint: hint})
		}
	}
	return out, silent
}

// withFlags appends flags to a command.
func withFlags(command, flags string) string { return strings.TrimSpace(command + " " + flags) }

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
	var missing []*unstructured.Unstructured
	for i := range pods {
		p := &pods[i]
		name := p.GetName() + "." + p.GetNamespace()
		status, _ := p.Object["status"].(map[string]any)
		if _, known := slices.BinarySearch(connected, name); known || status["phase"] != "Running" || p.GetDeletionTimestamp() != nil ||
			p.GetAnnotations()[annotationState] == "" || mesh.IsProxyless(p.GetAnnotations()) || !slices.Contains(revisions, p.GetAnnotations()[labelRevision]) {
			continue
		}
		missing = append(missing, p)
	}
	var out []apply.Finding
	for i, p := range missing {
		fault := "its proxy is connected to no control plane of the cluster"
		if more := len(missing) - 1; len(missing) > maxListed { // they probably have one cause
			fault += fmt.Sprintf(", nor are the proxies of %d other pods", more)
		}
		out = append(out, apply.Finding{
			Level: apply.Error, Object: install.Ref(p), Fault: fault,
			Hint: fmt.Sprintf("kubectl -n %s logs %s -c istio-proxy", p.GetNamespace(), p.GetName()),
		})
		if i == 0 && len(missing) > maxListed {
			break
		}
	}
	return out, nil
}
