// Package proxystatus is how far proxies are with their configuration, as
// replicas of a control plane tell it, and as people read it.
package proxystatus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Report is what one replica says of the streams that it serves.
type Report struct {
	// Replica names it: its pod, or the address that was asked.
	Replica string `json:"replica"`
	// Error is why it says nothing.
	Error string `json:"error,omitzero"`
	// Err is the error behind Error, in the program that asked.
	Err error `json:"-"`
	// At is when it said so, by its own clock.
	At time.Time `json:"at,omitzero"`
	// Hints are what a person should know besides, a line each.
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
	// Identity is its SPIFFE id; empty when nobody proved one.
	Identity string `json:"identity,omitzero"`
	// Certificate is with which it proved it when the stream was opened; nil when
	// it was not by one.
	Certificate *mesh.ClientCertificate `json:"certificate,omitzero"`
	// Roots are the SHA-256 of the roots of the mesh that its agent was told and
	// accepted over this stream (PCDS), sorted; none when it did not ask.
	Roots     []string  `json:"roots,omitzero"`
	Variant   string    `json:"variant,omitzero"` // delta or sotw
	Connected time.Time `json:"connected,omitzero"`
	// Gone says that the stream has ended, in what Changed returns.
	Gone bool `json:"gone,omitzero"`
	// Types are those that it asked for, sorted by URL.
	Types []Type `json:"types"`
}

// Type is how far a stream is with one type of configuration.
type Type struct {
	Type  string `json:"type"` // short name: CDS …
	URL   string `json:"url"`
	State State  `json:"state"`
	// Sent is the version that was sent last, Acked that which was accepted last.
	Sent  string `json:"sent,omitzero"`
	Acked string `json:"acked,omitzero"`
	// SentAt and AnsweredAt are when the last response and the last answer went.
	SentAt     time.Time `json:"sentAt,omitzero"`
	AnsweredAt time.Time `json:"answeredAt,omitzero"`
	// Lag is how long the last response has been waiting for its answer.
	Lag Lag `json:"lag,omitzero"`
	// Error is why the proxy refused a response, or what is withheld from it.
	Error string `json:"error,omitzero"`
	// Refused are the resources that it is left without for it.
	Refused []string `json:"refused,omitzero"`
}

// Lag is a time in JSON as text, such as 1.5s.
type Lag time.Duration

// MarshalText implements encoding.TextMarshaler.
func (l Lag) MarshalText() ([]byte, error) { return []byte(time.Duration(l).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Lag) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*l = Lag(d)
	return err
}

// State is how a type stands.
type State string

// The states, in the words of Istio's tables. Error is told of a type as long as
// its last answer refused something, or the proxy is left without what it refused.
const (
	NotSent State = "NOT SENT"
	Synced  State = "SYNCED"
	Stale   State = "STALE" // a response waits for its answer
	Error   State = "ERROR"
)

// Sort puts a report into the order in which it is shown: proxies by name, types
// by URL.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Proxies, func(a, b Proxy) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Connected.Compare(b.Connected), cmp.Compare(a.Stream, b.Stream))
	})
	for _, p := range r.Proxies {
		slices.SortFunc(p.Types, func(a, b Type) int { return cmp.Compare(a.URL, b.URL) })
	}
}

// Keep drops the proxies that keep does not want.
func (r *Report) Keep(keep func(*Proxy) bool) {
	r.Proxies = slices.DeleteFunc(r.Proxies, func(p Proxy) bool { return !keep(&p) })
}

// Lag is the longest lag among the proxy's types.
func (p *Proxy) Lag() time.Duration {
	longest := Lag(0)
	for _, t := range p.Types {
		longest = max(longest, t.Lag)
	}
	return time.Duration(longest)
}

// Wrong says in a line each what is wrong with the proxies: what they refused,
// and what they have not answered for longer than stale.
func (r *Report) Wrong(stale time.Duration) []string {
	if r.Error != "" {
		return []string{r.Replica + ": " + r.Error}
	}
	var out []string
	for i := range r.Proxies {
		p := &r.Proxies[i]
		for _, t := range p.Types {
			switch {
			case t.State == Error:
				out = append(out, p.Name+" at "+r.Replica+": "+t.Type+": "+cmp.Or(t.Error, "refused"))
			case time.Duration(t.Lag) > stale:
				out = append(out, p.Name+" at "+r.Replica+": "+t.Type+": no answer for "+short(time.Duration(t.Lag)))
			}
		}
	}
	return out
}

// subscribed counts the types as Istio does: 4 (CDS,LDS,EDS,RDS).
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

// ShortType is the name that people use for a type; one without is named by
// the last part of its URL.
func ShortType(url string) string {
	if name := xdswire.ShortType(url); name != url {
		return name
	}
	if url == "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig" {
		return "PCDS"
	}
	return url[strings.LastIndexAny(url, "/.")+1:]
}
