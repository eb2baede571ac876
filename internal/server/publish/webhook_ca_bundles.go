package publish

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// webhooksInterval is the interval between checks of the webhook configurations.
	webhooksInterval = 5 * time.Second
	// maxWebhooks bounds a list of webhook configurations, in bytes.
	maxWebhooks = 8 << 20
	// webhookConfigurations is the path of the resources of webhook configurations.
	webhookConfigurations = "/apis/admissionregistration.k8s.io/v1/"
)

// WebhooksConfig configures Webhooks. All fields but Interval are required.
type WebhooksConfig struct {
	Cluster         mesh.ClusterID // of the control plane
	SystemNamespace string         // in every cluster
	// Revision is the revision of the control plane, such as default.
	Revision string
	// Roots returns the roots that verify the control plane, PEM, or nothing while they are
	// not known.
	Roots func() []byte
	// Serving reports whether the control plane answers webhooks.
	Serving func() bool
	// Written counts each write.
	Written  func(cluster mesh.ClusterID, result string)
	Interval time.Duration // default 5 s
	Log      *slog.Logger
}

// Webhooks write the roots of the mesh to the caBundle of the webhook configurations of a
// revision, in the own cluster and in remote clusters whose system namespace allows it. Once
// the control plane serves, they make the validation mandatory. They change only
// configurations with the label app.kubernetes.io/managed-by=meshctl.
type Webhooks struct {
	cfg WebhooksConfig

	mu       sync.Mutex // guards what follows
	clusters map[mesh.ClusterID]*clusterWebhooks
}

// clusterWebhooks are the webhook configurations of a cluster.
type clusterWebhooks struct {
	*WebhooksConfig
	id     mesh.ClusterID
	client *kube.Client
	last   problem

	mu      sync.Mutex // guards what follows
	looking bool
}

// NewWebhooks returns Webhooks without clusters. Run writes.
func NewWebhooks(cfg WebhooksConfig) *Webhooks {
	return &Webhooks{cfg: cfg, clusters: make(map[mesh.ClusterID]*clusterWebhooks)}
}

// SetCluster adds a cluster or changes the access to it.
func (w *Webhooks) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	client, err := kube.NewBoundedClient(access, maxWebhooks)
	if err != nil {
		return err
	}
	w.RemoveCluster(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clusters[id] = &clusterWebhooks{WebhooksConfig: &w.cfg, id: id, client: client}
	return nil
}

// RemoveCluster stops writing to a cluster. What was written stays.
func (w *Webhooks) RemoveCluster(id mesh.ClusterID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.clusters[id]; c != nil {
		c.client.Close()
		delete(w.clusters, id)
	}
}

// Problems returns the reasons why the last checks could not write all configurations, by
// cluster.
func (w *Webhooks) Problems() map[mesh.ClusterID]string {
	out := map[mesh.ClusterID]string{}
	for _, c := range w.all() {
		if text := c.last.Problem(); text != "" {
			out[c.id] = text
		}
	}
	return out
}

func (w *Webhooks) all() []*clusterWebhooks {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.clusters))
}

// Run writes until ctx ends. All replicas of a revision write the same. A cluster that does
// not answer delays no other.
func (w *Webhooks) Run(ctx context.Context) error {
	tick := time.NewTicker(cmp.Or(w.cfg.Interval, webhooksInterval))
	defer tick.Stop()
	var ended sync.WaitGroup
	defer ended.Wait()
	for {
		for _, c := range w.all() {
			if c.begin() {
				ended.Go(func() { c.end(ctx, c.look(ctx)) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// begin begins a check, unless one is running.
func (c *clusterWebhooks) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := !c.looking
	c.looking = true
	return began
}

// end ends a check with its result, and logs the first failure.
func (c *clusterWebhooks) end(ctx context.Context, err error) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.looking = false
	}()
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if c.last.set(text) {
		c.Log.Warn("the roots of the mesh cannot be written to webhook configurations: API servers may refuse to call this control plane",
			"cluster", c.id, "error", text, "fix", "grant list and patch on the webhook configurations of admissionregistration.k8s.io")
	}
}

// look corrects the webhook configurations of the revision.
func (c *clusterWebhooks) look(ctx context.Context) error {
	roots := c.Roots()
	if len(roots) == 0 || !c.Serving() {
		return nil
	}
	resources := []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
	if c.id != c.Cluster {
		if invited, err := c.invited(ctx); err != nil || !invited {
			return err
		}
		resources = resources[:1] // objects of Istio's kinds in other clusters do not count
	}
	for _, resource := range resources {
		request, cancel := context.WithTimeout(ctx, writeTimeout)
		text, err := kube.Raw(c.client.Get().AbsPath(webhookConfigurations+resource).
			Param("labelSelector", "app.kubernetes.io/managed-by=meshctl,istio.io/rev="+c.Revision).Do(request))
		cancel()
		if err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		var list struct{ Items []webhookConfiguration }
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		for i := range list.Items {
			if err := c.correct(ctx, resource, &list.Items[i], roots); err != nil {
				return err
			}
		}
	}
	return nil
}

// invited reports whether the control plane may write to the cluster.
func (c *clusterWebhooks) invited(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	system, err := c.client.Namespaces().Get(ctx, c.SystemNamespace)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read namespace %s: %w", c.SystemNamespace, err)
	}
	return invites(system.Annotations[mesh.AnnotationControlPlaneClusters], c.Cluster), nil
}

// webhookConfiguration has the fields of a webhook configuration that Webhooks read.
type webhookConfiguration struct {
	Metadata struct{ Name, ResourceVersion string }
	Webhooks []struct {
		ClientConfig  struct{ CABundle []byte }
		FailurePolicy string
	}
}

// correct writes what differs in a configuration.
func (c *clusterWebhooks) correct(ctx context.Context, resource string, o *webhookConfiguration, roots []byte) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// The order of the webhooks must not change in the meantime.
	patch := []operation{{"replace", "/metadata/resourceVersion", o.Metadata.ResourceVersion}}
	for i := range o.Webhooks {
		hook := &o.Webhooks[i]
		if !bytes.Equal(hook.ClientConfig.CABundle, roots) {
			patch = append(patch, operation{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), roots})
		}
		if hook.FailurePolicy == "Ignore" && resource == "validatingwebhookconfigurations" {
			patch = append(patch, operation{"add", fmt.Sprintf("/webhooks/%d/failurePolicy", i), "Fail"})
		}
	}
	if len(patch) == 1 {
		return nil
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = c.client.Patch(types.JSONPatchType).AbsPath(webhookConfigurations + resource + "/" + o.Metadata.Name).Body(body).Do(ctx).Error()
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // another replica, or install, was faster; the next look shows the result
	}
	if err != nil {
		c.Written(c.id, Failed)
		return fmt.Errorf("patch %s %s: %w", resource, o.Metadata.Name, err)
	}
	c.Written(c.id, Updated)
	c.Log.Info("webhook configuration written", "cluster", c.id, "resource", resource, "name", o.Metadata.Name)
	return nil
}
