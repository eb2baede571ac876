// Package connected describes connected proxies as values, for those who show
// them.
package connected

import (
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Proxy is one connected stream.
type Proxy struct {
	ID     string // <name>.<namespace>-<number of the stream>
	Node   xdsgen.Node
	Caller mesh.Caller // zero on a server without authentication
	// Certificate is with which the stream was proved; nil when it was not by one.
	Certificate *mesh.ClientCertificate
	Address     string // of the peer, host:port
	Variant     xdswire.Variant
	Connected   time.Time
	// Types holds the types that the proxy asked for, by short name (CDS …).
	Types map[string]Type
}

// Type is how far a proxy is with one type.
type Type struct {
	Sent  string // version of the last response; empty when there was none
	Acked string // version that the proxy accepted last
	NACK  *NACK  // what it refused since; nil when its last answer was an ACK
	// SentAt is when the last response was sent, AnsweredAt when the proxy
	// accepted or refused one last. Awaited says that the last response has no
	// answer yet.
	SentAt, AnsweredAt time.Time
	Awaited            bool
	// Refused are the resources that the proxy is left without because it
	// refused them, without Streams.
	Refused []Refused
}

// NACK is a response that a proxy refused.
type NACK struct {
	Version string
	Message string
	At      time.Time
}

// Refused is a resource that a proxy refused and is left without: it keeps
// what it had.
type Refused struct {
	Type     string `json:"type"`
	Resource string `json:"resource"`
	Version  string `json:"version"` // of the resource
	// Found says how it was found: by the error text, or alone in a response,
	// perhaps after halving.
	Found string    `json:"found"`
	Since time.Time `json:"since"` // the first proxy's
	Error string    `json:"error"` // the first proxy's
	// Streams are those that refused it, sorted.
	Streams []string `json:"streams"`
}

// Sent is what a stream asked for of one type and was sent last.
type Sent struct {
	Version  string
	Wildcard bool
	Names    []string // subscribed to, besides the wildcard
	// Resources are those subscribed to, sorted by name.
	Resources []*xdswire.Resource
}
