package clusters

import (
	"cmp"
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
	Revision        string // of the control plane
	// Remote is true for a cluster other than the control plane's.
	Remote    bool
	SocketDir string
	// IgnorePolicies is that of source.Converter.
	IgnorePolicies bool
	Log            *slog.Logger
	Now            func() time.Time
}

// Access returns an access that reads the directory.
func (d Directory) Access() Access {
	return Access{NewSource: func() Source {
		return directorySource{&dir.Source{Cluster: d.Cluster, Dir: d.Dir, SystemNamespace: d.SystemNamespace, Revision: d.Revision, Remote: d.Remote, SocketDir: d.SocketDir, IgnorePolicies: d.IgnorePolicies, Log: d.Log, Now: d.Now}}
	}}
}

// Static returns the directory as a cluster of the command line.
func (d Directory) Static() StaticCluster {
	return StaticCluster{Origin: Origin{OriginDirectory, d.Dir}, Spec: Spec{
		ID: d.Cluster, Hash: d.Dir,
		Open: func([]string) (*Access, error) {
			access := d.Access()
			return &access, nil
		},
	}}
}

type directorySource struct{ *dir.Source }

// Report implements Source.
func (d directorySource) Report() Report {
	var r Report
	if since, reason := d.Lost(); !since.IsZero() {
		r.LostSince, r.Cause, r.Reason = since, "directory", reason
	}
	if left := d.LeftOut(); left != "" {
		r.Problems = append(r.Problems, left)
	}
	var found problems
	list := d.Status()
	for i := range list {
		p := &list[i]
		found.add(cmp.Or(p.Object, p.Place()), p.Unenforced, p.Shared, p.String)
	}
	found.into(&r)
	return r
}
