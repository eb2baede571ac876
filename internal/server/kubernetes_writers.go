package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/autoregister"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/publish"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/workloadhealth"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// apiParts are the parts that write to the API servers of clusters or ask them for
// decisions.
type apiParts struct {
	reviewers *identity.Reviewers // made when the server runs
	reviews   *prometheus.CounterVec
	// keyReviews are the rights to read keys in clusters with an API.
	keyReviews *identity.SecretAccess
	roots      *publish.Roots
	tokens     *publish.Tokens
	addresses  *publish.Addresses
	webhooks   *publish.Webhooks
	meshConfig *publish.MeshConfigCopy
	health     *workloadhealth.Reports
	// registrations make the WorkloadEntries of machines.
	registrations *autoregister.Registrations
	lease         *publish.Lease
	announcer     *replicas.Announcer
	handlers      []clusters.Handler // of changes of clusters
}

func (s *Server) newAPIParts() {
	k := &s.apis
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"cluster", "result"})
		s.metrics.MustRegister(c)
		return c
	}
	k.reviews = counter("meshctl_token_reviews_total", "TokenReviews that API servers were asked for, by result: accepted, refused or error.")
	rootWrites := counter("meshctl_root_configmap_writes_total", "Writes of the ConfigMaps with the roots of the mesh, by result: created, updated, deleted or error.")
	renewals := counter("meshctl_remote_token_renewals_total", "Renewals of the tokens of remote secrets, by result: updated or error.")
	healthWrites := counter("meshctl_workload_health_writes_total", "Writes of the health of workloads to their WorkloadEntries, by result: updated or error.")
	registrations := counter("meshctl_workload_registrations_total", "Writes of the WorkloadEntries of machines, by result: registered, deleted or error.")
	addressWrites := counter("meshctl_address_writes_total", "Writes of allocated addresses to ServiceEntries, by result: updated or error.")
	webhookWrites := counter("meshctl_webhook_configuration_writes_total", "Writes of the roots of the mesh to webhook configurations, by result: updated or error.")
	writing := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "meshctl_writer", Help: "Whether this replica holds the Lease, and so writes to Kubernetes.",
	})
	s.metrics.MustRegister(writing)
	k.keyReviews = identity.NewSecretAccess(identity.SecretAccessConfig{
		Changed: func(pods []string) { s.hub.Reconsider(pods) }, Log: s.cfg.log(logCredentials), Now: s.cfg.Now,
	})
	k.roots = publish.NewRoots(publish.RootsConfig{
		Cluster: s.cfg.ClusterID, SystemNamespace: s.cfg.systemNamespace(), Written: counted(rootWrites),
		Now: s.cfg.Now, Log: s.cfg.log(logWriters),
	})
	k.tokens = publish.NewTokens(publish.TokensConfig{
		API: s.cfg.KubeAccess, Namespace: s.cfg.systemNamespace(), Written: counted(renewals),
		Reach: func(c *remotesecret.Cluster) (*rest.Config, error) {
			return s.kubernetes.Reach(c, s.sources.Setting(c.ID))
		},
		Now: s.cfg.Now, Log: s.cfg.log(logWriters),
	})
	k.addresses = publish.NewAddresses(publish.AddressesConfig{
		API: s.cfg.KubeAccess, Cluster: s.cfg.ClusterID, Written: counted(addressWrites), Now: s.cfg.Now, Log: s.cfg.log(logWriters),
		Unwritten: func() []facts.UnwrittenAddresses { return s.registry.UnwrittenAddresses() },
	})
	k.webhooks = publish.NewWebhooks(publish.WebhooksConfig{
		Cluster: s.cfg.ClusterID, SystemNamespace: s.cfg.systemNamespace(), Revision: cmp.Or(s.cfg.Revision, mesh.DefaultRevision),
		Roots: s.servingRoots, Serving: s.ready.Load, Written: counted(webhookWrites), Log: s.cfg.log(logWriters),
	})
	k.meshConfig = publish.NewMeshConfigCopy(publish.MeshConfigCopyConfig{
		API: s.cfg.KubeAccess, Namespace: s.cfg.systemNamespace(), Revision: s.cfg.Revision, Log: s.cfg.log(logWriters),
	})
	k.health = workloadhealth.New(workloadhealth.Config{
		Set: func(entry snapshot.PodKey, account string, is snapshot.Condition) {
			s.registry.SetHealth(entry, account, is)
		},
		Written: counted(healthWrites), Log: s.cfg.log(logWriters), Now: s.cfg.Now,
	})
	k.registrations = autoregister.New(autoregister.Config{
		Controller: s.replica(), MaxAge: max(0, cmp.Or(s.cfg.Limits.ConnectionAge, xds.DefaultLimits().ConnectionAge)), Written: counted(registrations),
		Log: s.cfg.log(logWriters), Now: s.cfg.Now,
	})
	k.lease = publish.NewLease(publish.LeaseConfig{
		Access: s.cfg.KubeAccess, Namespace: s.cfg.systemNamespace(), Holder: s.replica(), Now: s.cfg.Now, Log: s.cfg.log(logWriters),
		Held: func(yes bool) {
			writing.Set(0)
			if yes {
				writing.Set(1)
			}
		},
	})
	k.announcer = replicas.NewAnnouncer(replicas.AnnouncerConfig{
		Access: s.cfg.KubeAccess, Namespace: s.cfg.systemNamespace(), Say: s.announcement, Now: s.cfg.Now, Log: s.cfg.log(logWriters),
	})
	setReviewer := func(id mesh.ClusterID, access *rest.Config) error { return k.reviewers.SetCluster(id, access) }
	removeReviewer := func(id mesh.ClusterID) { k.reviewers.RemoveCluster(id) }
	k.handlers = []clusters.Handler{
		clusterHandler{setReviewer, removeReviewer, k.reviews, "tokens of a cluster cannot be reviewed", s.cfg.Log},
		clusterHandler{k.roots.SetCluster, k.roots.RemoveCluster, rootWrites, "the roots of the mesh cannot be written to a cluster", s.cfg.Log},
		clusterHandler{k.webhooks.SetCluster, k.webhooks.RemoveCluster, webhookWrites, "webhook configurations cannot be written to a cluster", s.cfg.Log},
		clusterHandler{
			k.keyReviews.SetCluster, k.keyReviews.RemoveCluster, nil,
			"permissions to read secrets cannot be checked: gateways of the cluster get no keys", s.cfg.Log,
		},
		clusterHandler{k.health.SetCluster, k.health.RemoveCluster, healthWrites, "the health of workloads cannot be written", s.cfg.Log},
		clusterHandler{k.registrations.SetCluster, k.registrations.RemoveCluster, registrations, "machines cannot be registered", s.cfg.Log},
	}
}

// announcement returns the contents of this control plane's Lease.
func (s *Server) announcement() replicas.Announcement {
	a := replicas.Announcement{Replica: s.cfg.Replica, Cluster: s.cfg.ClusterID, Pod: s.cfg.Pod}
	if at, ok := addrOrNil(s.http).(*net.TCPAddr); ok {
		addr := at.AddrPort()
		if addr.Addr().IsUnspecified() { // status pages are for loopback callers
			addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
		}
		a.Addresses = []string{addr.String()}
	}
	list, _ := s.sources.Status()
	for i := range list {
		a.Clusters = append(a.Clusters, replicas.ClusterDigest{ID: list[i].Cluster, State: string(list[i].State), Credential: list[i].Credential})
	}
	return a
}

// replica returns the name of this control plane, and makes it if needed.
func (s *Server) replica() string {
	if s.cfg.Replica == "" {
		s.cfg.Replica = "meshctl-" + strings.ToLower(rand.Text())
	}
	return s.cfg.Replica
}

func counted(c *prometheus.CounterVec) func(mesh.ClusterID, string) {
	return func(cluster mesh.ClusterID, result string) { c.WithLabelValues(string(cluster), result).Inc() }
}

// clusterHandler is a clusters.Handler for one part.
type clusterHandler struct {
	set     func(mesh.ClusterID, *rest.Config) error
	remove  func(mesh.ClusterID)
	results *prometheus.CounterVec // by cluster, may be nil
	failure string                 // logged when the part cannot use a cluster
	log     *slog.Logger
}

// SetCluster implements clusters.Handler.
func (h clusterHandler) SetCluster(id mesh.ClusterID, access *rest.Config) {
	if err := h.set(id, access); err != nil {
		h.log.Error(h.failure, "cluster", id, "error", err) //nolint:sloglint // one constant for each part
	}
}

// RemoveCluster implements clusters.Handler.
func (h clusterHandler) RemoveCluster(id mesh.ClusterID) {
	h.remove(id)
	if h.results != nil {
		h.results.DeletePartialMatch(prometheus.Labels{"cluster": string(id)})
	}
}

// runAPIParts starts the parts that use API servers, before all other parts.
func (s *Server) runAPIParts(ctx context.Context, g *errgroup.Group) {
	s.apis.reviewers = identity.NewReviewers(ctx, identity.ReviewersConfig{
		Audiences: s.cfg.TokenAudiences, Reviewed: counted(s.apis.reviews), Now: s.cfg.Now, Log: s.cfg.log(logAuthn),
	})
	g.Go(func() error {
		s.apis.reviewers.Wait()
		return nil
	})
	g.Go(func() error { return s.apis.health.Run(ctx) })
	g.Go(func() error { return s.apis.registrations.Run(ctx) })
	if s.cfg.KubeAccess != nil {
		tasks := []publish.Task{s.apis.roots.Run, s.apis.tokens.Run, s.apis.registrations.DeleteAbandoned}
		if s.cfg.ConfigDir == "" { // else the ServiceEntries are files
			tasks = append(tasks, s.apis.addresses.Run)
			g.Go(func() error { return s.apis.meshConfig.Run(ctx) })
		}
		if s.webhooks != nil {
			// Without the Lease, which a replica of another revision may hold.
			g.Go(func() error { return s.apis.webhooks.Run(ctx) })
		}
		g.Go(func() error { return s.apis.lease.Run(ctx, tasks...) })
		g.Go(func() error { return s.apis.announcer.Run(ctx) })
	}
}

// writersPage is /debug/writers: the writes of this replica to Kubernetes.
type writersPage struct {
	Replica string
	Lease   publish.LeaseStatus
	Roots   []publish.RootsStatus `json:",omitempty"`
	Tokens  []publish.TokenStatus `json:",omitempty"`
}

func (s *Server) writersPage() writersPage {
	return writersPage{Replica: s.cfg.Replica, Lease: s.apis.lease.Status(), Roots: s.apis.roots.Status(), Tokens: s.apis.tokens.Status()}
}

// apiNotes returns the problems with API servers, a line each.
func (s *Server) apiNotes() []string {
	var lines []string
	note := func(what, problem string) {
		if problem != "" {
			lines = append(lines, fmt.Sprintf("%s: %s", what, strings.ReplaceAll(problem, "\n", "; ")))
		}
	}
	for _, st := range s.apis.reviewers.Status() {
		note(fmt.Sprintf("tokens of cluster %s", st.Cluster), st.Problem)
	}
	if s.cfg.KubeAccess != nil {
		note("writing to Kubernetes", s.apis.lease.Status().Problem)
		note("addresses of hosts", s.apis.addresses.Problem())
		note("copy of MeshConfig", s.apis.meshConfig.Problem())
		problems := s.apis.webhooks.Problems()
		for _, id := range slices.Sorted(maps.Keys(problems)) {
			note(fmt.Sprintf("webhook configurations in cluster %s", id), problems[id])
		}
		note("being found by others", s.apis.announcer.Problem())
	}
	note("injection", s.injectionProblem())
	for _, st := range s.apis.roots.Status() {
		note(fmt.Sprintf("roots of the mesh in cluster %s", st.Cluster), st.Problem)
	}
	for _, st := range s.apis.tokens.Status() {
		note(fmt.Sprintf("token of remote secret %s, which ends at %s", st.Secret, st.Ends.UTC().Format(time.RFC3339)), st.Problem)
	}
	return lines
}
