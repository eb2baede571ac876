// Package clustersettings reads and writes the settings of a mesh's clusters: whether a
// cluster is drained, its weight, the action if it is lost, and what its kubeconfig may
// do. Control planes read them as YAML from the key clusters.yaml of the ConfigMap
// meshctl-clusters.
package clustersettings

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// The place of the settings, in the system namespace.
const (
	ConfigMap = "meshctl-clusters"
	Key       = "clusters.yaml"
)

// Manager is the field manager of meshctl's changes of the ConfigMap.
const Manager = "meshctl"

// MaxClusters bounds the number of clusters with settings.
const MaxClusters = 1000

// document is the YAML.
type document struct {
	Clusters mesh.ClusterSettings `json:"clusters" yaml:"clusters"`
}

// Parse parses the YAML. Empty text has no settings.
func Parse(text string) (mesh.ClusterSettings, error) {
	var f document
	doc, err := yamldoc.ParseOnly([]byte(text))
	if err != nil {
		return nil, err
	}
	data, err := doc.JSON()
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("want clusters: {NAME: {drain, weight, onLost, allow}}: %w", err)
	}
	if f.Clusters == nil {
		f.Clusters = mesh.ClusterSettings{}
	}
	return f.Clusters, check(f.Clusters)
}

func check(s mesh.ClusterSettings) error {
	if len(s) > MaxClusters {
		return fmt.Errorf("%d clusters: want at most %d", len(s), MaxClusters)
	}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(s)) {
		if err := checkCluster(id, s[id]); err != nil {
			errs = append(errs, fmt.Errorf("cluster %.80q: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func checkCluster(id mesh.ClusterID, c mesh.ClusterSetting) error {
	switch {
	case !id.Valid():
		return errors.New("want letters, digits, '.', '-' and '_', at most 63")
	case c.Weight > mesh.MaxWeight:
		return fmt.Errorf("weight %d: want 1 to %d percent", c.Weight, mesh.MaxWeight)
	}
	_, err := mesh.ParseOnLost(string(cmp.Or(c.OnLost, mesh.Keep)))
	if err != nil {
		return fmt.Errorf("onLost %w", err)
	}
	return nil
}

// YAML encodes the settings. It omits clusters without settings.
func YAML(s mesh.ClusterSettings) (string, error) {
	out := maps.Clone(s)
	maps.DeleteFunc(out, func(_ mesh.ClusterID, c mesh.ClusterSetting) bool { return c.IsZero() })
	if err := check(out); err != nil {
		return "", err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(document{out}); err != nil {
		return "", err
	}
	return b.String(), nil
}
