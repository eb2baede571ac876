package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// notReady returns the reasons why the server is not ready, none when it is.
func (s *Server) notReady() []string {
	if s.draining.Load() {
		return []string{"the server is stopping"}
	}
	if s.ca.Current() == nil {
		return s.ca.Problems()
	}
	if err := s.fit.get(); err != nil && !s.ready.Load() {
		return []string{fmt.Sprintf("signing CA: it does not fit the mesh: %v", err)}
	}
	if !s.ready.Load() {
		return append([]string{"the configuration was not read completely yet"}, s.ownFaults()...)
	}
	return nil
}

// notes returns lines for /ready?verbose in addition to the reasons not to be ready:
// the state of the CA and the clusters, and the problems of all parts.
func (s *Server) notes() []string {
	var lines []string
	set := s.ca.Current()
	if len(s.notReady()) == 0 && set != nil {
		signer := ca.Describe(set.Cert)
		lines = append(lines, "ready", fmt.Sprintf("signing CA: %s, valid until %s", signer.Subject, signer.Until.Format(time.RFC3339)))
		list, _ := s.sources.Status()
		for i := range list {
			lines = append(lines, clusterNote(&list[i]))
		}
	}
	lines = append(lines, s.policyNotes()...)
	if set != nil { // else it is a reason not to be ready
		lines = append(append(lines, s.ca.Problems()...), s.ca.Warnings()...)
	}
	lines = append(lines, bounded(s.registry.DuplicateExtensions(), "extensions that are configured twice: see the log")...)
	lines = append(lines, bounded(texts(s.hub.PatchFaults()), "patches without effect: see the log")...)
	lines = append(lines, bounded(s.registry.ServerConflicts(), "servers of Gateways that are not opened: see the log")...)
	lines = append(lines, bounded(s.registry.BeyondLimits(), "objects beyond limits of their namespaces: see the log")...)
	lines = append(lines, bounded(s.registry.UnknownProviders(), "providers that do not work: see the log")...)
	lines = append(lines, bounded(texts(s.registry.UnreachableNetworks()), "networks that cannot be reached, which this command shows: meshctl remote-clusters")...)
	lines = append(lines, bounded(texts(s.registry.AddressConflicts()), "addresses that two services have, which this command shows: meshctl remote-clusters -o json")...)
	lines = append(lines, bounded(texts(s.registry.HostConflicts()), "hosts that several objects define, which this command shows: meshctl remote-clusters -o json")...)
	lines = append(lines, bounded(texts(s.registry.RouteProblems()), "problems of VirtualServices: see the log")...)
	lines = append(lines, bounded(texts(s.findings.Load().unlogged), "faults of the configuration, which this command shows: meshctl x internal-debug analysis --all")...)
	lines = append(lines, bounded(texts(s.registry.Faults()), "facts that could not be computed and keep their last good values: see the log")...)
	lines = append(lines, s.apiNotes()...)
	lines = append(lines, s.bundleNotes()...)
	lines = append(lines, s.ownNotes()...)
	lines = append(lines, s.keySetNotes()...)
	return append(lines, nackNotes(s.hub.NACKs())...)
}

// clusterNote returns a line about a cluster.
func clusterNote(c *clusters.Status) string {
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

// policyNotes warns of security policies that are not enforced.
func (s *Server) policyNotes() []string {
	if own := s.ownCluster(); own != nil && len(own.Unenforced) > 0 {
		return []string{"warning: " + own.UnenforcedText()}
	}
	return nil
}

// ownFaults returns why the own cluster is not read.
func (s *Server) ownFaults() []string {
	if own := s.ownCluster(); own != nil && own.Reason != "" {
		return []string{own.Reason}
	}
	return nil
}

// ownNotes returns the problems of the secure port's certificate and of OIDC issuers.
func (s *Server) ownNotes() []string {
	var lines []string
	if s.own != nil {
		if err := s.own.Problem(); err != nil {
			lines = append(lines, oneLine(err.Error()))
		}
	}
	for _, st := range s.oidcPage() {
		if st.Problem != "" {
			lines = append(lines, fmt.Sprintf("tokens of issuer %s: %s", st.Issuer, oneLine(st.Problem)))
		}
	}
	return lines
}

// bundleNotes returns the problems of trust bundles.
func (s *Server) bundleNotes() []string {
	var lines []string
	list := s.trust.Bundles.Status()
	for i := range list {
		if st := &list[i]; st.Problem != "" {
			lines = append(lines, fmt.Sprintf("trust bundle %s from %s: since %s: %s", cmp.Or(st.TrustDomain, "of the mesh"), st.Source,
				st.Since.Format(time.RFC3339), oneLine(st.Problem)))
		}
	}
	return bounded(lines, "trust bundles: see /debug/bundles")
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

func texts[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}

// nackNotes returns the refused resources, after their number.
func nackNotes(page xds.NACKs) []string {
	all := len(page.Refused)
	if all == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf("refused: %d", all)}
	for _, r := range page.Refused[:min(all, maxNotes)] {
		streams := "1 stream"
		if n := len(r.Streams); n != 1 {
			streams = fmt.Sprintf("%d streams", n)
		}
		from := ""
		if len(r.Objects) > 0 {
			from = ", of " + strings.Join(r.Objects[:min(len(r.Objects), maxObjects)], ", ")
		}
		lines = append(lines, fmt.Sprintf("%s %s%s: refused by %s since %s: %q",
			r.Type, r.Resource, from, streams, r.Since.UTC().Format(time.RFC3339), r.Error))
	}
	if more := all - maxNotes; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more refused resources; all are in: meshctl xds nacks -o json", more))
	}
	return lines
}

// maxObjects bounds the objects that are named for a refused resource.
const maxObjects = 3

// maxNotes bounds the lines of one kind in /ready?verbose.
const maxNotes = 50

// bounded returns the first lines, and a line with the number of the others.
func bounded(lines []string, what string) []string {
	more := len(lines) - maxNotes
	if more <= 0 {
		return lines
	}
	return append(slices.Clip(lines[:maxNotes]), fmt.Sprintf("and %d more %s", more, what))
}
