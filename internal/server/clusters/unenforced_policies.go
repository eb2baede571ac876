package clusters

import (
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

func unenforced(cluster mesh.ClusterID, policies []string) string {
	return fmt.Sprintf("cluster %s has security policies that are not enforced: %s", cluster, names(policies))
}

// maxNames bounds the names in one line.
const maxNames = 10

// names joins the first of the names and counts the others.
func names(list []string) string {
	text := strings.Join(list[:min(len(list), maxNames)], ", ")
	if more := len(list) - maxNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// UnenforcedText names the security policies that are not enforced.
func (s *Status) UnenforcedText() string { return unenforced(s.Cluster, s.Unenforced) }

// Hints returns the problems of the cluster's configuration that commands show beside
// their results, a line each.
func (s *Status) Hints() []string {
	var lines []string
	if len(s.Unenforced) > 0 {
		lines = append(lines, "Warning: "+s.UnenforcedText())
	}
	if s.NotUsed > 0 {
		lines = append(lines, fmt.Sprintf("Cluster %s has configuration that is not used or has no effect, %s; to show it: meshctl x internal-debug clusters --all", s.Cluster, output.Plural(s.NotUsed, "problem")))
	}
	return lines
}

// remind logs unenforced security policies of the own cluster from time to time.
func (m *Manager) remind() {
	own, now := m.clusters[m.cfg.Own], m.cfg.Now()
	if own == nil || !own.synced || now.Sub(m.reminded) < m.cfg.timing.remind {
		return
	}
	m.reminded = now
	if list := own.reader.report().Unenforced; len(list) > 0 {
		m.cfg.Log.Warn("security policies are not enforced", "cluster", own.id, "policies", names(list))
	}
}
