package metrics

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Workload describes the workload of the agent in Istio's standard metrics.
type Workload struct {
	mesh.WorkloadLabels
	Namespace string
}

// unknown is the value of a label that has none.
const unknown = "unknown"

// envoyPrefix precedes the names of statistics in the metrics of Envoy.
const envoyPrefix = "envoy_"

// standardMetrics holds the names of Istio's standard metrics.
var standardMetrics = []string{
	mesh.MetricRequests, mesh.MetricRequestDuration, mesh.MetricRequestBytes, mesh.MetricResponseBytes,
	mesh.MetricTCPOpened, mesh.MetricTCPClosed, mesh.MetricTCPSent, mesh.MetricTCPReceived,
}

// converter converts statistics of Envoy, which the control plane configures, to Istio's standard
// metrics. If several statistics get the same labels, such as the statistics of two ports of a
// service, it adds their values.
type converter struct {
	own   Workload
	peers *Peers

	family string // name of the metric whose lines come
	series []*series
	byText map[string]*series // by the labels of Istio
	byTags map[string]*series // by the tags of Envoy
}

// series is a counter or a histogram.
type series struct {
	labels string // without le
	points []point
}

// point is a line of a series.
type point struct {
	suffix, le string // of a histogram
	value      float64
}

// add takes a line of Envoy's metrics. It reports false if the line is for no standard metric; then
// the lines that were taken before must be written first.
func (c *converter) add(line []byte) bool {
	if rest, ok := bytes.CutPrefix(line, []byte("# TYPE "+envoyPrefix)); ok {
		name, _, _ := bytes.Cut(rest, []byte(" "))
		if c.family != "" || !slices.Contains(standardMetrics, string(name)) {
			return false
		}
		c.family, c.byText, c.byTags = string(name), make(map[string]*series), make(map[string]*series)
		return true
	}
	if c.family == "" {
		return false
	}
	rest, ok := bytes.CutPrefix(line, []byte(envoyPrefix+c.family))
	if !ok {
		return false
	}
	suffix, rest, ok := bytes.Cut(rest, []byte("{"))
	end := bytes.LastIndexByte(rest, '}')
	if !ok || end < 0 {
		return false
	}
	value, err := strconv.ParseFloat(string(bytes.TrimSpace(rest[end+1:])), 64)
	if err != nil {
		return false
	}
	tags, le := rest[:end], ""
	if string(suffix) == "_bucket" {
		at := bytes.LastIndex(tags, []byte(`le="`))
		if at < 0 {
			return false
		}
		tags, le = bytes.TrimRight(tags[:at], ","), string(tags[at:])
	}
	c.seriesOf(string(tags)).add(string(suffix), le, value)
	return true
}

func (c *converter) seriesOf(tags string) *series {
	s := c.byTags[tags]
	if s != nil {
		return s
	}
	labels := c.labels(tags)
	if s = c.byText[labels]; s == nil {
		s = &series{labels: labels}
		c.series, c.byText[labels] = append(c.series, s), s
	}
	c.byTags[tags] = s
	return s
}

func (s *series) add(suffix, le string, value float64) {
	for i := range s.points {
		if p := &s.points[i]; p.suffix == suffix && p.le == le {
			p.value += value
			return
		}
	}
	s.points = append(s.points, point{suffix, le, value})
}

// flush writes the metric whose lines were taken.
func (c *converter) flush(w io.Writer) error {
	if c.family == "" {
		return nil
	}
	kind := "counter"
	if !strings.HasSuffix(c.family, "_total") {
		kind = "histogram"
	}
	var err error
	write := func(parts ...string) {
		for _, part := range parts {
			if err == nil {
				_, err = io.WriteString(w, part)
			}
		}
	}
	write("# TYPE ", c.family, " ", kind, "\n")
	for _, s := range c.series {
		for _, p := range s.points {
			labels := s.labels
			if p.le != "" {
				labels += "," + p.le
			}
			write(c.family, p.suffix, "{", labels, "} ", strconv.FormatFloat(p.value, 'f', -1, 64), "\n")
		}
	}
	*c = converter{own: c.own, peers: c.peers}
	return err
}

// labels returns Istio's labels for the tags of a statistic. Values are escaped, as Prometheus has
// them.
func (c *converter) labels(text string) string {
	tags := parseTags(text)
	own := escaped(c.own)
	own.identity = tags[mesh.TagOwnIdentity]
	peer := end{identity: tags[mesh.TagPeerIdentity]}
	policy := unknown
	source, destination := &own, &peer
	if tags[mesh.TagReporter] == mesh.ReporterDestination {
		source, destination = &peer, &own
		if id, err := mesh.ParseIdentity(peer.identity); err == nil {
			known := escaped(Workload{WorkloadLabels: c.peers.workload(peer.identity), Namespace: id.Namespace})
			peer.Workload = known.Workload
		}
		policy = "none"
		if peer.identity != "" {
			policy = "mutual_tls"
		}
	} else {
		peer.describe(tags[mesh.TagWorkload])
	}
	host, name, namespace := serviceOf(tags[mesh.TagCluster])
	protocol := "http"
	switch {
	case strings.HasPrefix(c.family, "istio_tcp_"):
		protocol = "tcp"
	case tags[mesh.TagGRPCStatus] != "":
		protocol = "grpc"
	}

	removed := strings.Split(tags[mesh.TagRemoved], ",")
	var out strings.Builder
	write := func(label, value string) {
		if out.Len() > 0 {
			out.WriteByte(',')
		}
		out.WriteString(label + `="` + value + `"`)
	}
	add := func(label, value string) {
		if _, set := tags[mesh.TagSet+label]; !set && !slices.Contains(removed, label) {
			write(label, cmp.Or(value, unknown))
		}
	}
	add("reporter", tags[mesh.TagReporter])
	source.add("source", add)
	destination.add("destination", add)
	add("destination_service", host)
	add("destination_service_name", name)
	add("destination_service_namespace", cmp.Or(namespace, destination.Namespace))
	add("request_protocol", protocol)
	if code, ok := tags[mesh.TagCode]; ok {
		add("response_code", code)
	}
	if status := tags[mesh.TagGRPCStatus]; status != "" {
		add("grpc_response_status", status)
	}
	add("response_flags", cmp.Or(tags[mesh.TagFlags], "-"))
	add("connection_security_policy", policy)
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		if label, ok := strings.CutPrefix(name, mesh.TagSet); ok {
			write(label, cmp.Or(tags[name], unknown))
		}
	}
	return out.String()
}

// end is an end of a call.
type end struct {
	Workload
	identity string
}

// escaped returns the end of a workload, with escaped values.
func escaped(w Workload) end {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace
	return end{Workload: Workload{Namespace: escape(w.Namespace), WorkloadLabels: mesh.WorkloadLabels{
		Name: escape(w.Name), Service: escape(w.Service), Revision: escape(w.Revision),
		App: escape(w.App), Version: escape(w.Version), Cluster: escape(w.Cluster),
	}}}
}

// describe sets the workload of an endpoint from its metadata: name, namespace, canonical name,
// canonical revision and cluster. An empty revision is latest. The metadata has no labels, so the
// canonical names stand for them.
func (e *end) describe(metadata string) {
	parts := strings.Split(metadata, ";")
	if len(parts) != 5 {
		return
	}
	e.Name, e.Namespace, e.Service, e.Revision, e.Cluster = parts[0], parts[1], parts[2], parts[3], parts[4]
	if e.Service != "" {
		e.Revision = cmp.Or(e.Revision, "latest")
	}
	e.App, e.Version = e.Service, e.Revision
}

// add adds the labels of an end.
func (e *end) add(prefix string, add func(label, value string)) {
	add(prefix+"_workload", e.Name)
	add(prefix+"_canonical_service", e.Service)
	add(prefix+"_canonical_revision", e.Revision)
	add(prefix+"_workload_namespace", e.Namespace)
	add(prefix+"_principal", e.identity)
	add(prefix+"_app", e.App)
	add(prefix+"_version", e.Version)
	if e.Cluster != "" || prefix == "destination" {
		// Kiali drops series of an unknown source cluster, but not series without it.
		add(prefix+"_cluster", e.Cluster)
	}
}

// serviceOf returns the service of a cluster of Envoy: its host, its name and its namespace. The name
// of a service that is not in Kubernetes is its host. Clusters such as PassthroughCluster have only
// their own name.
func serviceOf(cluster string) (host, name, namespace string) {
	c, ok := mesh.ParseClusterName(cluster)
	if !ok {
		c, ok = mesh.ParseSNI(cluster)
	}
	if !ok || c.Host == "" {
		return "", cluster, ""
	}
	if parts := strings.SplitN(c.Host, ".", 4); len(parts) > 2 && parts[2] == "svc" {
		return c.Host, parts[0], parts[1]
	}
	return c.Host, c.Host, ""
}

// parseTags returns the labels of a line in the text format, with the values as they are there.
func parseTags(text string) map[string]string {
	out := make(map[string]string)
	for {
		name, rest, ok := strings.Cut(text, `="`)
		if !ok {
			return out
		}
		length := 0
		for length < len(rest) && rest[length] != '"' {
			if rest[length] == '\\' {
				length++
			}
			length++
		}
		length = min(length, len(rest))
		out[strings.TrimLeft(name, ",")] = rest[:length]
		text = rest[min(length+1, len(rest)):]
	}
}
