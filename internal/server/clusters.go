package server

import (
	"cmp"
	"math/rand/v2"

	"github.com/meshctl/meshctl/internal/server/clusters"
)

// newClusters makes the manager of the clusters.
func (s *Server) newClusters() *clusters.Manager {
	cfg := clusters.Config{
		Own: s.cfg.ClusterID, OwnOrigin: clusters.Origin{Kind: clusters.OriginOwn, Name: s.cfg.ConfigDir},
		OwnAccess: s.directory(ClusterDir{s.cfg.ClusterID, s.cfg.ConfigDir}).Access(),
		Registry:  clusters.CountUpdates(s.registry, s.metrics), RemoteTimeout: cmp.Or(s.cfg.RemoteTimeout, defaultRemoteTimeout),
		Handlers: s.apis.handlers, OnLost: s.cfg.OnClusterLost, Grace: s.cfg.Grace,
		Log: s.cfg.log(logClusters), Now: s.cfg.Now, Jitter: rand.Float64, Metrics: s.metrics,
	}
	k := &clusters.Kubernetes{
		Allow: s.cfg.Allow, InPod: s.cfg.InPod, IgnorePolicies: s.cfg.IgnorePolicies,
		SystemNamespace: s.cfg.systemNamespace(), Revision: s.cfg.Revision,
		SecretNamespaces: s.cfg.SecretNamespaces, Count: clusters.CountEvents(s.metrics), Log: s.cfg.log(logSource), Now: s.cfg.Now,
	}
	s.kubernetes = k
	if s.cfg.KubeAccess != nil {
		cfg.OwnOrigin.Name, cfg.OwnAccess = s.cfg.KubeAccess.Host, k.Own(s.cfg.ClusterID, s.cfg.KubeAccess)
		cfg.Finders = append(cfg.Finders, &clusters.Secrets{
			API: s.cfg.KubeAccess, Namespace: s.cfg.systemNamespace(), Spec: k.Spec, Log: s.cfg.log(logClusters),
		})
	}
	if s.cfg.KubeconfigDir != "" {
		cfg.Finders = append(cfg.Finders, &clusters.Files{Dir: s.cfg.KubeconfigDir, Spec: k.Spec, Log: s.cfg.log(logClusters)})
	}
	for _, d := range s.cfg.RemoteDirs {
		remote := s.directory(d)
		remote.Remote = true
		cfg.Static = append(cfg.Static, remote.Static())
	}
	return clusters.New(cfg)
}

func (s *Server) directory(d ClusterDir) clusters.Directory {
	return clusters.Directory{
		Cluster: d.Cluster, Dir: d.Dir, SystemNamespace: s.cfg.systemNamespace(), Revision: s.cfg.Revision, SocketDir: s.cfg.SocketDir,
		IgnorePolicies: s.cfg.IgnorePolicies, Log: s.cfg.log(logSource), Now: s.cfg.Now,
	}
}
