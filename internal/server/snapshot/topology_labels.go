package snapshot

import "github.com/meshctl/meshctl/internal/mesh"

// TopologyLabel returns the value of a label that a workload has because of its place. ok is
// false for other labels.
func TopologyLabel(label string, c mesh.ClusterID, n mesh.NetworkID, l mesh.Locality, node string) (value string, ok bool) {
	switch label {
	case mesh.LabelCluster:
		return string(c), true
	case mesh.LabelNetwork:
		return string(n), true
	case mesh.LabelRegion:
		return l.Region, true
	case mesh.LabelZone:
		return l.Zone, true
	case mesh.LabelSubzone:
		return l.Subzone, true
	case mesh.LabelHostname:
		return node, true
	}
	return "", false
}

// Label returns the value of a label of an endpoint: of its place, or else of its workload.
func (e *Endpoint) Label(name string) (value string, ok bool) {
	if v, _ := TopologyLabel(name, e.Cluster, e.Network, e.Locality, e.Node); v != "" {
		return v, true
	}
	value, ok = e.Labels[name]
	return value, ok
}

// HasLabels reports whether an endpoint has all of the wanted labels.
func (e *Endpoint) HasLabels(want map[string]string) bool {
	for name, value := range want {
		if v, ok := e.Label(name); !ok || v != value {
			return false
		}
	}
	return true
}
