package server

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/server/clusters"
)

// newClusters makes the owner of the clusters.
func (s *Server) newClusters() *clusters.Manager {
	cfg := clusters.Config{
		Own: s.cfg.ClusterID, OwnOrigin: clusters.Origin{Kind: clusters.OriginOwn, Name: s.cfg.ConfigDir},
		OwnAccess: s.directory(ClusterDir{s.cfg.ClusterID, s.cfg.ConfigDir}).Access(),
		Registry:  newInbound(s.registry, s.metrics), RemoteTimeout: cmp.Or(s.cfg.RemoteTimeout, defaultRemoteTimeout),
		Handlers: s.handlers(), OnLost: s.cfg.OnClusterLost, Grace: s.cfg.Grace, IgnorePolicies: s.cfg.IgnorePolicies,
		Log: s.cfg.log(logClusters), Now: s.cfg.Now, Jitter: rand.Float64, Metrics: s.metrics,
	}
	k := &clusters.Kubernetes{
		Allow: s.cfg.Allow, InPod: s.cfg.InPod,
		SystemNamespace: s.cfg.systemNamespace(), SecretNamespaces: s.cfg.SecretNamespaces, Count: kubeEvents(s.metrics), Log: s.cfg.log(logSource), Now: s.cfg.Now,
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
		Cluster: d.Cluster, Dir: d.Dir, SystemNamespace: s.cfg.systemNamespace(), Log: s.cfg.log(logSource), Now: s.cfg.Now,
	}
}

// noteOf is a line about a cluster for /ready?verbose.
func noteOf(c *clusters.Status) string {
	text := fmt.Sprintf("cluster %s: ", c.Cluster)
	switch c.State {
	case clusters.Synced:
		text += "read"
		if c.Reason != "" {
			text += "; " + c.Reason
		}
	case clusters.Lost:
		text += fmt.Sprintf("lost since %s: %s", c.LostSince.UTC().Format(time.RFC3339), c.Reason)
	case clusters.Syncing, clusters.Timeout:
		text += "not read yet"
		if c.Reason != "" {
			text = fmt.Sprintf("cluster %s: not read: %s", c.Cluster, c.Reason)
		}
	}
	if !strings.Contains(text, c.CredentialProblem) {
		text += "; " + c.CredentialProblem
	}
	return strings.Join(append([]string{text}, c.Problems...), "; ")
}

// policyNotes warn of security policies that are not enforced.
func (s *Server) policyNotes() []string {
	if own := s.ownCluster(); own != nil && len(own.Unenforced) > 0 {
		return []string{"warning: " + own.UnenforcedText()}
	}
	return nil
}

// configurationHints are what a person who looks at proxies should know of the
// configuration.
func (s *Server) configurationHints() []string {
	if own := s.ownCluster(); own != nil {
		return own.Hints()
	}
	return nil
}

func (s *Server) ownCluster() *clusters.Status {
	list, _ := s.sources.Status()
	for i := range list {
		if list[i].Own {
			return &list[i]
		}
	}
	return nil
}

// ownFaults are why the own cluster is not followed.
func (s *Server) ownFaults() []string {
	if own := s.ownCluster(); own != nil && own.Reason != "" {
		return []string{own.Reason}
	}
	return nil
}
