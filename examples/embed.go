// Package examples holds YAML to start from. It is embedded into meshctl, so
// that the commands that use it work without a checkout.
package examples

import "embed"

// TwoClusters is two-clusters/cluster1 and two-clusters/cluster2: what a
// person writes for a mesh of two clusters on two networks.
//
//go:embed two-clusters/cluster1/*.yaml two-clusters/cluster2/*.yaml
var TwoClusters embed.FS
