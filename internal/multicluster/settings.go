package multicluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

// settingsManager names meshctl among those who write an object.
const settingsManager = "meshctl"

// maxSettings bounds the file of settings, in bytes.
const maxSettings = 1 << 20

// ChangeSettings changes the settings of clusters in the ConfigMap
// meshctl-clusters of the namespace, which is made when it is not there. When
// somebody else changes them at the same time, change is called again.
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
		if apierrors.IsNotFound(err) {
			made := settingsMap(namespace)
			if err := changeMap(made, change); err != nil {
				return err
			}
			_, err = maps.Create(ctx, made, metav1.CreateOptions{FieldManager: settingsManager})
			return err
		}
		if err != nil {
			return err
		}
		if err := changeMap(have, change); err != nil {
			return err
		}
		_, err = maps.Update(ctx, have, metav1.UpdateOptions{FieldManager: settingsManager})
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

// ChangeSettingsFile does the same in the file clusters.yaml of a control
// plane's directory, and returns its path.
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
