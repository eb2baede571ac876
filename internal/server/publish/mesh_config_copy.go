package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

// copyInterval is the interval between checks of the copy of MeshConfig.
const copyInterval = 15 * time.Second

// MeshConfigCopyConfig configures MeshConfigCopy. All fields but Interval are required.
type MeshConfigCopyConfig struct {
	API       *rest.Config // of the own cluster
	Namespace string       // of the control plane
	// Revision is the revision of the control plane. The revision default has no copy.
	Revision string
	Interval time.Duration // default 15 s
	Log      *slog.Logger
}

// MeshConfigCopy keeps the ConfigMap istio-REVISION, in which tools such as Kiali look for the
// MeshConfig of a revision, equal to the ConfigMap istio, which control planes of all revisions read.
// It changes only a ConfigMap with the annotation of a copy: Istio has ConfigMaps of the same name.
type MeshConfigCopy struct {
	cfg MeshConfigCopyConfig
	problem
}

// NewMeshConfigCopy returns a MeshConfigCopy. Run writes.
func NewMeshConfigCopy(cfg MeshConfigCopyConfig) *MeshConfigCopy { return &MeshConfigCopy{cfg: cfg} }

// Run writes until ctx ends. All replicas of a revision write the same.
func (m *MeshConfigCopy) Run(ctx context.Context) error {
	name := mesh.ConfigMapOf(m.cfg.Revision)
	if name == mesh.MeshConfigMap {
		return nil
	}
	client, err := kube.NewBoundedClient(m.cfg.API, maxObject)
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", name, err)
	}
	defer client.Close()
	tick := time.NewTicker(cmp.Or(m.cfg.Interval, copyInterval))
	defer tick.Stop()
	for {
		m.note(ctx, name, m.look(ctx, client.ConfigMaps(m.cfg.Namespace), name))
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look writes the copy if it differs. Without a copy there is nothing to do.
func (m *MeshConfigCopy) look(ctx context.Context, configMaps kube.Objects[*corev1.ConfigMap, *corev1.ConfigMapList], name string) error {
	have, err := configMaps.Get(ctx, name)
	if apierrors.IsNotFound(err) || err == nil && have.Annotations[mesh.AnnotationCopyOf] != mesh.MeshConfigMap {
		return nil
	}
	if err != nil {
		return err
	}
	original, err := configMaps.Get(ctx, mesh.MeshConfigMap)
	if apierrors.IsNotFound(err) {
		return nil // the control plane keeps what it had
	}
	if err != nil || maps.Equal(have.Data, original.Data) {
		return err
	}
	data := make(map[string]any, len(original.Data))
	for key := range have.Data {
		data[key] = nil
	}
	for key, value := range original.Data {
		data[key] = value
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	_, err = configMaps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// note sets the problem, and logs the first one.
func (m *MeshConfigCopy) note(ctx context.Context, name string, err error) {
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if m.set(text) {
		m.cfg.Log.Warn("the copy of MeshConfig for tools such as Kiali cannot be written", "configmap", name, "error", text,
			"fix", "grant get and patch on the ConfigMap")
	}
}
