package mesh

import "fmt"

// ClusterSettings holds the settings of clusters, as in the ConfigMap
// meshctl-clusters.
type ClusterSettings map[ClusterID]ClusterSetting

// ClusterSetting holds the settings of one cluster.
type ClusterSetting struct {
	// Drain removes the cluster's endpoints from load balancing if other clusters have
	// healthy endpoints of the service.
	Drain bool `json:"drain,omitempty" yaml:"drain,omitempty"`
	// Weight is the weight of each endpoint in percent, 1 to MaxWeight; 0 means 100.
	Weight uint32 `json:"weight,omitempty" yaml:"weight,omitempty"`
	// OnLost overrides the flag of the control plane if it is not empty.
	OnLost OnLost `json:"onLost,omitempty" yaml:"onLost,omitempty"`
	// Allow names features of the cluster's kubeconfig that are refused by default.
	Allow []string `json:"allow,omitempty" yaml:"allow,omitempty,flow"`
}

// MaxWeight bounds ClusterSetting.Weight, in percent.
const MaxWeight = 1000

// IsZero reports whether nothing is set for the cluster.
func (c ClusterSetting) IsZero() bool {
	return !c.Drain && c.Weight == 0 && c.OnLost == "" && len(c.Allow) == 0
}

// OnLost is the action on the endpoints of a cluster whose API server is lost.
type OnLost string

// The values of OnLost.
const (
	Keep   OnLost = "keep"   // no change
	Demote OnLost = "demote" // give them a lower priority than other clusters' endpoints
	Drop   OnLost = "drop"   // demote them and, after a grace period, drain them
)

// ParseOnLost parses keep, demote or drop.
func ParseOnLost(s string) (OnLost, error) {
	switch o := OnLost(s); o {
	case Keep, Demote, Drop:
		return o, nil
	}
	return "", fmt.Errorf("%q: want keep, demote or drop", s)
}
