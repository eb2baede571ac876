package multicluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/replicas"
)

// maxSettings is the size limit of the settings file in bytes.
const maxSettings = 1 << 20

// ChangeSettings changes the settings of clusters in the ConfigMap meshctl-clusters of
// the namespace, and creates the ConfigMap if needed. It calls change again after a
// concurrent change.
func (c *Cluster) ChangeSettings(ctx context.Context, namespace string, change func(mesh.ClusterSettings)) error {
	api, err := kube.NewClient(c.config)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	maps := api.ConfigMaps(namespace)
	err = retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}, func() error {
		have, err := maps.Get(ctx, clustersettings.ConfigMap)
		missing := apierrors.IsNotFound(err)
		if missing {
			have, err = settingsMap(namespace), nil
		}
		if err == nil {
			err = changeMap(have, change)
		}
		switch {
		case err != nil:
			return err
		case missing:
			_, err = maps.Create(ctx, have, metav1.CreateOptions{FieldManager: clustersettings.Manager})
		default:
			_, err = maps.Update(ctx, have, metav1.UpdateOptions{FieldManager: clustersettings.Manager})
		}
		return err
	})
	if err != nil {
		return c.Explain(fmt.Errorf("change the ConfigMap %s/%s: %w", namespace, clustersettings.ConfigMap, err))
	}
	return nil
}

func settingsMap(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: clustersettings.ConfigMap, Namespace: namespace},
	}
}

func changeMap(m *corev1.ConfigMap, change func(mesh.ClusterSettings)) error {
	settings, err := clustersettings.Parse(m.Data[clustersettings.Key])
	if err != nil {
		return fmt.Errorf("its key %s: %w", clustersettings.Key, err)
	}
	settings = maps.Clone(settings)
	change(settings)
	text, err := clustersettings.YAML(settings)
	if err != nil {
		return err
	}
	if m.Data == nil {
		m.Data = make(map[string]string)
	}
	m.Data[clustersettings.Key] = text
	return nil
}

// ChangeSettingsFile changes the settings in the file clusters.yaml of a control
// plane's directory, and returns the path of the file.
func ChangeSettingsFile(dir, namespace string, change func(mesh.ClusterSettings)) (string, error) {
	path := filepath.Join(dir, clustersettings.Key)
	m := settingsMap(namespace)
	text, err := files.Read(path, maxSettings)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return path, err
	default:
		if err := yaml.UnmarshalStrict(text, m); err != nil {
			return path, fmt.Errorf("%s: %w", path, err)
		}
		if m.Kind != "ConfigMap" || m.Name != clustersettings.ConfigMap || m.Namespace != namespace {
			return path, fmt.Errorf("%s holds another object than the ConfigMap %s/%s", path, namespace, clustersettings.ConfigMap)
		}
	}
	if err := changeMap(m, change); err != nil {
		return path, fmt.Errorf("%s: %w", path, err)
	}
	out, err := yaml.Marshal(m)
	if err != nil {
		return path, err
	}
	return path, files.Write(path, out, 0o644)
}

var errUntold = errors.New("no control plane announces its clusters")

// KnownClusters returns the sorted clusters that are known in a namespace of the
// cluster: from the Leases of control planes, from remote secrets, which may be newer,
// and from the present settings. If it also returns an error, clusters may be missing.
func (c *Cluster) KnownClusters(ctx context.Context, namespace string, now time.Time) ([]mesh.ClusterID, error) {
	var known []mesh.ClusterID
	announced, err := replicas.Announced(ctx, c.config, namespace, now)
	if err == nil && len(announced) == 0 {
		err = fmt.Errorf("%w: namespace %s has no Lease of one", errUntold, namespace)
	}
	for _, a := range announced {
		if a.Cluster != "" {
			known = append(known, a.Cluster)
		}
		for _, r := range a.Clusters {
			known = append(known, r.ID)
		}
		if a.Left > 0 {
			err = fmt.Errorf("%w: the Lease of %s leaves %d out", errUntold, a.Replica, a.Left)
		}
	}
	// Draining clusters must not require the right to read Secrets.
	if remote, err := c.RemoteClusters(ctx, namespace); err == nil {
		for i := range remote {
			known = append(known, remote[i].ID)
		}
	}
	set, setErr := c.settings(ctx, namespace)
	for id := range set {
		known = append(known, id)
	}
	slices.Sort(known)
	return slices.Compact(known), errors.Join(err, setErr)
}

// settings returns the settings in the ConfigMap, none if it does not exist.
func (c *Cluster) settings(ctx context.Context, namespace string) (mesh.ClusterSettings, error) {
	api, err := kube.NewClient(c.config)
	if err != nil {
		return nil, err
	}
	m, err := api.ConfigMaps(namespace).Get(ctx, clustersettings.ConfigMap)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of clusters: %w", err)
	}
	return clustersettings.Parse(m.Data[clustersettings.Key])
}
