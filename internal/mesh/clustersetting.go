package mesh

import "fmt"

// ClusterSettings are what is set for clusters, by name.
type ClusterSettings map[ClusterID]ClusterSetting

// ClusterSetting is what is set for one cluster.
type ClusterSetting struct {
	// Drain takes its endpoints out of balancing where others have the service.
	Drain bool `json:"drain,omitempty" yaml:"drain,omitempty"`
	// Weight is the share of its endpoints in percent, 1 to MaxWeight; 0 is 100.
	Weight uint32 `json:"weight,omitempty" yaml:"weight,omitempty"`
	// OnLost, when not empty, wins over the flag of the control plane.
	OnLost OnLost `json:"onLost,omitempty" yaml:"onLost,omitempty"`
	// Allow names what its kubeconfig may do that is refused otherwise.
	Allow []string `json:"allow,omitempty" yaml:"allow,omitempty,flow"`
}

// MaxWeight bounds ClusterSetting.Weight, in percent.
const MaxWeight = 1000

// IsZero reports whether nothing is said of the cluster.
func (c ClusterSetting) IsZero() bool {
	return !c.Drain && c.Weight == 0 && c.OnLost == "" && len(c.Allow) == 0
}

// OnLost is what happens to the endpoints of a cluster that cannot be followed
// any more.
type OnLost string

// What can happen.
const (
	Keep   OnLost = "keep"   // they stay as they are
	Demote OnLost = "demote" // they come after those of other clusters
	Drop   OnLost = "drop"   // that, and after a grace they get no load where others have the service
)

// ParseOnLost reads keep, demote or drop.
func ParseOnLost(s string) (OnLost, error) {
	switch o := OnLost(s); o {
	case Keep, Demote, Drop:
		return o, nil
	}
	return "", fmt.Errorf("%q: want keep, demote or drop", s)
}
