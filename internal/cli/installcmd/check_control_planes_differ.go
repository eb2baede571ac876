package installcmd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/ca"
)

// expiresSoon is the time before the end of a CA from which it is a finding, if it lives much longer.
const expiresSoon = 30 * 24 * time.Hour

// wrongCAs returns the faults of signing CAs.
func (p *controlPlanes) wrongCAs(now time.Time, flags string) []apply.Finding {
	var out []apply.Finding
	add := func(level apply.Level, source, format string, args ...any) {
		f := apply.Finding{Level: level, Object: "signing CA of " + source, Fault: fmt.Sprintf(format, args...), Hint: withFlags("meshctl certs status", flags)}
		if !slices.Contains(out, f) { // several replicas have the same
			out = append(out, f)
		}
	}
	for _, a := range p.cas {
		page := &a.Value
		if page.Error != "" {
			add(apply.Error, page.Source, "is not in use: %s", proxystatus.OneLine(page.Error))
		}
		if page.Alarm != "" {
			add(apply.Error, page.Source, "revocation lists: %s", proxystatus.OneLine(page.Alarm))
		}
		if page.Loaded == nil {
			continue
		}
		for _, c := range append([]ca.Certificate{page.Loaded.Signer}, page.Loaded.Roots...) {
			left := c.Until.Sub(now)
			switch {
			case left < 0:
				add(apply.Error, page.Source, "%s expired at %s", c.Subject, c.Until.Format(time.RFC3339))
			case left < min(expiresSoon, c.Until.Sub(c.From)/5):
				add(apply.Warning, page.Source, "%s expires at %s", c.Subject, c.Until.Format(time.RFC3339))
			}
		}
	}
	return out
}

// plane is a control plane in one of the checked clusters.
type plane struct {
	*replicas.Replica
	cluster *checkedCluster
	flags   string // by which commands reach the cluster
}

func (p *plane) String() string {
	return fmt.Sprintf("control plane %s (revision %s, %s)", p.Name, p.Identity.Revision, p.cluster.Name)
}

// compareControlPlanes finds control planes of one mesh with another CA, mesh ID or trust domain, and
// control planes that do not agree about the name of their cluster.
func (o *checkOptions) compareControlPlanes(clusters []*checkedCluster, states []clusterState) []apply.Finding {
	var out []apply.Finding
	var all []*plane
	for i := range states {
		for _, r := range states[i].planes.replicas {
			if r.Identity.Revision != "" { // else it does not tell what to compare
				all = append(all, &plane{r, clusters[i], o.kube.CommandFlags(clusters[i].access.Context)})
			}
		}
	}
	// Of two that differ, the one that is not of the default revision is at fault.
	slices.SortStableFunc(all, func(a, b *plane) int { return cmp.Compare(a.rank(), b.rank()) })
	for _, differ := range []func(a, b *plane) (fault, hint string){clusterDiffers, meshDiffers, trustDomainDiffers, authorityDiffers} {
		var agreed []*plane
		for _, p := range all {
			var f apply.Finding
			for _, other := range agreed {
				if f.Fault, f.Hint = differ(p, other); f.Fault != "" {
					break
				}
			}
			if f.Fault == "" {
				agreed = append(agreed, p)
				continue
			}
			f.Level, f.Object = apply.Error, fmt.Sprintf("control plane %s (revision %s)", p.Name, p.Identity.Revision)
			if len(clusters) > 1 {
				f.Cluster = p.cluster.access.Context
			}
			out = append(out, f)
		}
	}
	return out
}

func (p *plane) rank() int {
	if p.Identity.Revision == mesh.DefaultRevision {
		return 0
	}
	return 1
}

// upgrade returns the command that changes a setting of a control plane.
func (p *plane) upgrade(flag, value string) string {
	command := "meshctl upgrade"
	if p.Identity.Revision != mesh.DefaultRevision {
		command += " --revision " + p.Identity.Revision
	}
	return withFlags(command+" "+flag+" "+value, p.flags)
}

func clusterDiffers(a, b *plane) (fault, hint string) {
	x, y := a.Identity.Cluster, b.Identity.Cluster
	switch {
	case a.cluster == b.cluster && x != y:
		return fmt.Sprintf("it calls the cluster %s, but %s calls it %s: they treat each other's proxies as proxies of another cluster", x, b, y), a.upgrade("--cluster-id", string(y))
	case a.cluster != b.cluster && x == y:
		return fmt.Sprintf("it calls its cluster %s, as does %s, which is another cluster: pods of both count as one cluster's", x, b), a.upgrade("--cluster-id", "ANOTHER_NAME")
	}
	return "", ""
}

func meshDiffers(a, b *plane) (fault, hint string) {
	if x, y := a.Identity.MeshID, b.Identity.MeshID; x != "" && y != "" && x != y {
		return fmt.Sprintf("its mesh ID is %s, but %s has %s: it refuses proxies of the other mesh", x, b, y), a.upgrade("--mesh-id", y)
	}
	return "", ""
}

// trustDomainDiffers compares control planes of one cluster; analyze compares clusters.
func trustDomainDiffers(a, b *plane) (fault, hint string) {
	x, y := a.Identity.TrustDomains, b.Identity.TrustDomains
	if a.cluster != b.cluster || len(x) == 0 || len(y) == 0 || slices.Contains(x, y[0]) && slices.Contains(y, x[0]) {
		return "", ""
	}
	return fmt.Sprintf("its trust domain is %s, but %s has %s: their proxies refuse each other", x[0], b, y[0]),
		"set trustDomain of both MeshConfigs to the same value, or list the other one in trustDomainAliases"
}

func authorityDiffers(a, b *plane) (fault, hint string) {
	trusts := func(p, other *plane) bool {
		return len(p.Identity.Trusts) == 0 || len(other.Identity.SignsBelow) == 0 ||
			slices.ContainsFunc(other.Identity.SignsBelow, func(root string) bool { return slices.Contains(p.Identity.Trusts, root) })
	}
	if trusts(a, b) && trusts(b, a) {
		return "", ""
	}
	short := func(sums []string) string {
		var out []string
		for _, s := range sums {
			out = append(out, s[:min(len(s), 11)])
		}
		return strings.Join(out, ", ")
	}
	return fmt.Sprintf("its CA has the root %s, but the CA of %s has %s: their proxies refuse each other's certificates", short(a.Identity.SignsBelow), b, short(b.Identity.SignsBelow)),
		"give both a CA below one root; to compare: " + withFlags("meshctl certs status", a.flags)
}
