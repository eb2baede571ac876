package publish

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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
	API     *rest.Config // of the own cluster
	Cluster mesh.ClusterID
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
// revision. Once the control plane serves, they make the validation mandatory. They change
// only configurations with the label app.kubernetes.io/managed-by=meshctl.
type Webhooks struct {
	cfg WebhooksConfig

	mu      sync.Mutex
	problem string
}

// NewWebhooks returns Webhooks. Run writes.
func NewWebhooks(cfg WebhooksConfig) *Webhooks { return &Webhooks{cfg: cfg} }

// Problem returns the reason why the last check could not write all configurations, or "".
func (w *Webhooks) Problem() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem
}

// Run writes until ctx ends. All replicas of a revision write the same.
func (w *Webhooks) Run(ctx context.Context) error {
	client, err := kube.NewBoundedClient(w.cfg.API, maxWebhooks)
	if err != nil {
		return fmt.Errorf("write the webhook configurations: %w", err)
	}
	defer client.Close()
	tick := time.NewTicker(cmp.Or(w.cfg.Interval, webhooksInterval))
	defer tick.Stop()
	for {
		if err := w.look(ctx, client); ctx.Err() == nil {
			w.set(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// set sets the problem, and logs it once.
func (w *Webhooks) set(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	w.mu.Lock()
	before := w.problem
	w.problem = problem
	w.mu.Unlock()
	if problem != "" && before == "" {
		w.cfg.Log.Warn("the roots of the mesh cannot be written to webhook configurations: API servers may refuse to call this control plane",
			"error", problem, "fix", "grant list and patch on the webhook configurations of admissionregistration.k8s.io")
	}
}

// look corrects the webhook configurations of the revision.
func (w *Webhooks) look(ctx context.Context, client *kube.Client) error {
	roots := w.cfg.Roots()
	if len(roots) == 0 || !w.cfg.Serving() {
		return nil
	}
	for _, resource := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		request, cancel := context.WithTimeout(ctx, writeTimeout)
		text, err := client.Get().AbsPath(webhookConfigurations+resource).
			Param("labelSelector", "app.kubernetes.io/managed-by=meshctl,istio.io/rev="+w.cfg.Revision).Do(request).Raw()
		cancel()
		if err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		var list struct{ Items []webhookConfiguration }
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		for i := range list.Items {
			if err := w.correct(ctx, client, resource, &list.Items[i], roots); err != nil {
				return err
			}
		}
	}
	return nil
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
func (w *Webhooks) correct(ctx context.Context, client *kube.Client, resource string, c *webhookConfiguration, roots []byte) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// The order of the webhooks must not change in the meantime.
	patch := []operation{{"replace", "/metadata/resourceVersion", c.Metadata.ResourceVersion}}
	for i := range c.Webhooks {
		hook := &c.Webhooks[i]
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
	err = client.Patch(types.JSONPatchType).AbsPath(webhookConfigurations + resource + "/" + c.Metadata.Name).Body(body).Do(ctx).Error()
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // another replica, or install, was faster; the next look shows the result
	}
	if err != nil {
		w.cfg.Written(w.cfg.Cluster, Failed)
		return fmt.Errorf("patch %s %s: %w", resource, c.Metadata.Name, err)
	}
	w.cfg.Written(w.cfg.Cluster, Updated)
	w.cfg.Log.Info("webhook configuration written", "resource", resource, "name", c.Metadata.Name)
	return nil
}
