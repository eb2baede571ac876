package proxystatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// row is a proxy and the replica that serves it.
type row struct {
	*Proxy
	report *Report
}

// ended sorts a stream that ended before its successor.
func (r row) ended() int {
	if r.Gone {
		return 0
	}
	return 1
}

// rows returns the proxies of all reports, sorted. A proxy that moves between replicas
// has a row for each.
func rows(reports []Report) []row {
	var out []row
	for i := range reports {
		for j := range reports[i].Proxies {
			out = append(out, row{&reports[i].Proxies[j], &reports[i]})
		}
	}
	slices.SortStableFunc(out, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.report.Replica, b.report.Replica), a.ended()-b.ended())
	})
	return out
}

// Table returns a table with Istio's columns and a summary for each proxy.
func Table(reports []Report) *output.Table {
	t := &output.Table{Header: []string{"NAME", "CLUSTER", "ISTIOD", "VERSION", "SUBSCRIBED TYPES", "STATUS"}}
	for _, r := range rows(reports) {
		types := "0"
		if names := r.subscribed(); len(names) > 0 {
			types = fmt.Sprintf("%d (%s)", len(names), strings.Join(names, ","))
		}
		t.Rows = append(t.Rows, []string{r.Name, r.Cluster, r.report.Replica, r.Version, types, r.summary()})
	}
	return t
}

// TypesTable returns a table with a column for each type, as Istio's with -v 1.
func TypesTable(reports []Report) *output.Table {
	types := columns(reports)
	t := &output.Table{Header: append(append([]string{"NAME", "CLUSTER"}, names(types)...), "ISTIOD", "VERSION")}
	for _, r := range rows(reports) {
		cells := []string{r.Name, r.Cluster}
		for _, url := range types {
			cells = append(cells, r.cell(url))
		}
		t.Rows = append(t.Rows, append(cells, r.report.Replica, r.Version))
	}
	return t
}

// WideTable returns a table with all fields of each stream.
func WideTable(reports []Report) *output.Table {
	types := columns(reports)
	header := append([]string{"NAME", "STREAM", "KIND", "CLUSTER", "NETWORK"}, names(types)...)
	t := &output.Table{Gap: 3, Header: append(header, "LAG", "CONNECTED", "ISTIOD", "VERSION", "ENVOY", "IDENTITY", "STATUS")}
	for _, r := range rows(reports) {
		number := strings.TrimPrefix(strings.TrimPrefix(r.Stream, r.Name), "-")
		cells := []string{r.Name, dash(number), dash(r.Kind), r.Cluster, dash(r.Network)}
		for _, url := range types {
			cells = append(cells, r.cell(url))
		}
		lag := "-"
		if d := r.Lag(); d > 0 {
			lag = short(d)
		}
		t.Rows = append(t.Rows, append(cells, lag, r.since(r.Connected), r.report.Replica, r.Version, dash(r.Envoy), dash(r.Identity), r.summary()))
	}
	return t
}

// columns returns the URLs of Istio's types and of all others in the reports, sorted.
func columns(reports []Report) []string {
	urls := []string{xdswire.ClusterType, xdswire.ListenerType, xdswire.EndpointType, xdswire.RouteType, xdswire.ExtensionType}
	for _, r := range rows(reports) {
		for _, t := range r.Types {
			urls = append(urls, t.URL)
		}
	}
	slices.Sort(urls)
	return slices.Compact(urls)
}

func names(urls []string) []string {
	out := make([]string, len(urls))
	for i, url := range urls {
		out[i] = ShortType(url)
	}
	return out
}

// cell returns the state of a type and its age, as in SYNCED (3m).
func (r row) cell(url string) string {
	i := slices.IndexFunc(r.Types, func(t Type) bool { return t.URL == url })
	if i < 0 {
		return "IGNORED"
	}
	t := r.Types[i]
	at := t.AnsweredAt
	if t.State == Stale || at.IsZero() {
		at = t.SentAt
	}
	text := string(t.State)
	if t.State == Stale && t.Acked == "" && t.Sent != "" {
		text += " (Never Acknowledged)"
	}
	if !at.IsZero() {
		text += " (" + r.since(at) + ")"
	}
	return text
}

// since returns the time since at, by the replica's clock.
func (r row) since(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return short(max(r.report.At.Sub(at), 0))
}

// summary returns the types with problems, or SYNCED.
func (r row) summary() string {
	var parts []string
	for _, t := range r.Types {
		if t.State == Error {
			parts = append(parts, "ERROR "+t.Type+": "+cmp.Or(t.Error, "refused"))
		}
	}
	for _, t := range r.Types {
		switch t.State {
		case Stale:
			parts = append(parts, "STALE "+t.Type+" for "+short(time.Duration(t.Lag)))
		case NotSent:
			parts = append(parts, "NOT SENT "+t.Type)
		}
	}
	switch {
	case r.Gone:
		return "DISCONNECTED"
	case len(r.Types) == 0:
		return "-"
	}
	return cmp.Or(strings.Join(parts, "; "), string(Synced))
}

// short returns a duration in Istio's format for ages: one unit, or two below ten.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return d.Truncate(time.Millisecond).String()
	case d < 10*time.Minute:
		return trim(d.Truncate(time.Second))
	case d < 10*time.Hour:
		return trim(d.Truncate(time.Minute))
	case d < 10*day:
		return trim(d.Truncate(time.Hour))
	}
	return fmt.Sprintf("%dd", d/day)
}

// trim removes parts that are zero.
func trim(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func dash(s string) string { return cmp.Or(s, "-") }
