// Package clustersettings is what a mesh sets for its clusters: who is drained, who
// takes which share of the load, what happens when one is lost, and what its
// kubeconfig may do. It is kept as YAML in the key clusters.yaml of the
// ConfigMap meshctl-clusters, so that every control plane and every restart has
// it.
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

// Where the settings are kept: in the system namespace.
const (
	ConfigMap = "meshctl-clusters"
	Key       = "clusters.yaml"
)

// MaxClusters bounds of how many clusters something may be said.
const MaxClusters = 1000

// file is the YAML.
type file struct {
	Clusters mesh.ClusterSettings `json:"clusters" yaml:"clusters"`
}

// Parse reads the YAML. An empty text says nothing of any cluster.
func Parse(text string) (mesh.ClusterSettings, error) {
	var f file
	n := 0
	for chunk := range yamldoc.Split([]byte(text)) {
		doc, err := yamldoc.Parse(chunk)
		switch {
		case err != nil:
			return nil, err
		case doc.IsNull():
			continue
		}
		if n++; n > 1 {
			return nil, fmt.Errorf("line %d: a second YAML document", doc.Line())
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

// YAML writes the settings, clusters of which nothing is said left out.
func YAML(s mesh.ClusterSettings) (string, error) {
	out := maps.Clone(s)
	maps.DeleteFunc(out, func(_ mesh.ClusterID, c mesh.ClusterSetting) bool { return c.IsZero() })
	if err := check(out); err != nil {
		return "", err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(file{out}); err != nil {
		return "", err
	}
	return b.String(), nil
}
