// Package proxystatus holds the state of proxies as replicas report it, and writes it
// as tables.
package proxystatus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Report is one replica's report of its streams.
type Report struct {
	// Replica is the pod of the replica, or the address of the request.
	Replica string `json:"replica"`
	// Error is the reason why there is no report.
	Error string `json:"error,omitzero"`
	// Err is the error behind Error, in the program that sent the request.
	Err error `json:"-"`
	// At is the time of the report by the replica's clock.
	At time.Time `json:"at,omitzero"`
	// Hints are remarks for the reader.
	Hints   []string `json:"hints,omitempty"`
	Proxies []Proxy  `json:"proxies"`
}

// Proxy is one stream of a proxy.
type Proxy struct {
	Name      string `json:"name"` // <name>.<namespace>
	Namespace string `json:"namespace"`
	// Stream is Name and the number of the stream.
	Stream  string `json:"stream,omitzero"`
	Cluster string `json:"cluster"`
	Network string `json:"network,omitzero"`
	Kind    string `json:"kind,omitzero"`    // sidecar, router …
	Version string `json:"version,omitzero"` // its ISTIO_VERSION
	Envoy   string `json:"envoy,omitzero"`   // version of its Envoy
	// Identity is the SPIFFE identity, empty for a caller without one.
	Identity string `json:"identity,omitzero"`
	// Certificate is the client certificate of the stream, nil without one.
	Certificate *mesh.ClientCertificate `json:"certificate,omitzero"`
	// Roots are the SHA-256 of the roots of the mesh that the agent accepted over this
	// stream (PCDS), sorted.
	Roots     []string  `json:"roots,omitzero"`
	Variant   string    `json:"variant,omitzero"` // delta or sotw
	Connected time.Time `json:"connected,omitzero"`
	// Gone reports, in the result of Changed, that the stream has ended.
	Gone bool `json:"gone,omitzero"`
	// Types are the types that the proxy asked for, sorted by URL.
	Types []Type `json:"types"`
}

// Type is the state of one type of a stream.
type Type struct {
	Type  string `json:"type"` // short name: CDS …
	URL   string `json:"url"`
	State State  `json:"state"`
	// Sent is the version of the last response, Acked the last accepted version.
	Sent  string `json:"sent,omitzero"`
	Acked string `json:"acked,omitzero"`
	// SentAt is the time of the last response, AnsweredAt of the last answer.
	SentAt     time.Time `json:"sentAt,omitzero"`
	AnsweredAt time.Time `json:"answeredAt,omitzero"`
	// Lag is how long the last response has been waiting for its answer.
	Lag Lag `json:"lag,omitzero"`
	// Error is the reason of a NACK, or the quarantined resources.
	Error string `json:"error,omitzero"`
	// Refused are the resources in quarantine.
	Refused []string `json:"refused,omitzero"`
}

// Lag is a duration, in JSON as text such as 1.5s.
type Lag time.Duration

// MarshalText implements encoding.TextMarshaler.
func (l Lag) MarshalText() ([]byte, error) { return []byte(time.Duration(l).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Lag) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*l = Lag(d)
	return err
}

// State is the state of a type.
type State string

// The states, in the words of Istio's tables. A type is in state Error while its last
// answer is a NACK or resources are in quarantine.
const (
	NotSent State = "NOT SENT"
	Synced  State = "SYNCED"
	Stale   State = "STALE" // a response waits for its answer
	Error   State = "ERROR"
)

// Sort sorts a report for display: proxies by name, types by URL.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Proxies, func(a, b Proxy) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Connected.Compare(b.Connected), cmp.Compare(a.Stream, b.Stream))
	})
	for _, p := range r.Proxies {
		slices.SortFunc(p.Types, func(a, b Type) int { return cmp.Compare(a.URL, b.URL) })
	}
}

// Keep drops the proxies for which keep returns false.
func (r *Report) Keep(keep func(*Proxy) bool) {
	r.Proxies = slices.DeleteFunc(r.Proxies, func(p Proxy) bool { return !keep(&p) })
}

// Lag returns the longest lag of the proxy's types.
func (p *Proxy) Lag() time.Duration {
	longest := Lag(0)
	for _, t := range p.Types {
		longest = max(longest, t.Lag)
	}
	return time.Duration(longest)
}

// Wrong returns a line for each type that is in state Error or has not been answered
// for longer than stale.
func (r *Report) Wrong(stale time.Duration) []string {
	if r.Error != "" {
		return []string{r.Replica + ": " + OneLine(r.Error)}
	}
	var out []string
	for i := range r.Proxies {
		p := &r.Proxies[i]
		for _, t := range p.Types {
			switch {
			case t.State == Error:
				out = append(out, p.Name+" at "+r.Replica+": "+t.Type+": "+cmp.Or(OneLine(t.Error), "refused"))
			case time.Duration(t.Lag) > stale:
				out = append(out, p.Name+" at "+r.Replica+": "+t.Type+": no answer for "+short(time.Duration(t.Lag)))
			}
		}
	}
	return out
}

// OneLine returns the text of a proxy, which may have several lines, in one.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// subscribed returns the names of the types in Istio's order: CDS, LDS, EDS, RDS,
// others.
func (p *Proxy) subscribed() []string {
	first := []string{"CDS", "LDS", "EDS", "RDS"}
	var names []string
	for _, name := range first {
		if slices.ContainsFunc(p.Types, func(t Type) bool { return t.Type == name }) {
			names = append(names, name)
		}
	}
	for _, t := range p.Types { // sorted by URL
		if !slices.Contains(first, t.Type) {
			names = append(names, t.Type)
		}
	}
	return names
}

// ShortType returns the short name of a type, or the last part of its URL.
func ShortType(url string) string {
	if name := xdswire.ShortType(url); name != url {
		return name
	}
	if url == "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig" {
		return "PCDS"
	}
	return url[strings.LastIndexAny(url, "/.")+1:]
}
