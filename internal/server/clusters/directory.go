package clusters

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/dir"
)

// Directory is a cluster that is read from a directory of YAML.
type Directory struct {
	Cluster         mesh.ClusterID
	Dir             string
	SystemNamespace string
	Log             *slog.Logger
	Now             func() time.Time
}

// Origin is the directory as an origin.
func (d Directory) Origin() Origin { return Origin{OriginDirectory, d.Dir} }

// Access reads the directory.
func (d Directory) Access() Access {
	return Access{NewSource: func() Source {
		return directory{&dir.Source{Cluster: d.Cluster, Dir: d.Dir, SystemNamespace: d.SystemNamespace, Log: d.Log, Now: d.Now}}
	}}
}

// Static is the directory as a cluster of the command line.
func (d Directory) Static() StaticCluster {
	return StaticCluster{Origin: d.Origin(), Spec: Spec{
		ID: d.Cluster, Hash: d.Dir,
		Open: func([]string) (*Access, error) {
			access := d.Access()
			return &access, nil
		},
	}}
}

type directory struct{ *dir.Source }

// Report implements Source.
func (d directory) Report() Report {
	var r Report
	if since, reason := d.Lost(); !since.IsZero() {
		r.LostSince, r.Cause, r.Reason = since, "directory", reason
	}
	if left := d.LeftOut(); left != "" {
		r.Problems = append(r.Problems, left)
	}
	if n := len(d.Status()); n > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("%d problems in the directory, which the log tells", n))
	}
	return r
}
