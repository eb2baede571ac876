package history

import (
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Proxy describes one connected stream. The page /debug/proxies shows it as JSON.
type Proxy struct {
	ID     string // <name>.<namespace>-<number of the stream>
	Node   proxy.Node
	Caller mesh.Caller // zero on a server without authentication
	// Certificate is the client certificate of the stream, nil without one.
	Certificate *mesh.ClientCertificate
	Address     string // of the peer, host:port
	Variant     xdswire.Variant
	Connected   time.Time
	// Types holds the types that the proxy watches, by short name (CDS …).
	Types map[string]TypeStatus
}

// TypeStatus describes the progress of a proxy with one type. NACK is nil unless
// the proxy's last answer was a NACK.
type TypeStatus struct {
	Sent  string // version of the last response; empty before the first
	Acked string // version that the proxy accepted last
	NACK  *LastNACK
	// SentAt is the time of the last response, AnsweredAt the time of the last
	// ACK or NACK. Awaited is set while the last response has no answer.
	SentAt, AnsweredAt time.Time
	Awaited            bool
	// Quarantined lists the resources that the proxy refused, without Streams.
	Quarantined []QuarantinedResource `json:"Refused"`
}

// LastNACK is the last response of a type when the proxy refused it.
type LastNACK struct {
	Version string
	Message string
	At      time.Time
}

// QuarantinedResource is a resource that a proxy refused. The proxy keeps what it
// had before and is not sent this version again.
type QuarantinedResource struct {
	Type     string `json:"type"`
	Resource string `json:"resource"`
	Version  string `json:"version"` // of the resource
	// Found is the evidence: the error text names the resource, or the resource
	// was alone in a response, perhaps after halving.
	Found string    `json:"found"`
	Since time.Time `json:"since"` // of the first proxy
	Error string    `json:"error"` // of the first proxy
	// Objects are those that the resource is made from, as far as they may be the cause, as
	// KIND NAMESPACE/NAME.
	Objects []string `json:"objects,omitempty"`
	// Streams are the streams that refused the resource, sorted.
	Streams []string `json:"streams"`
}

// SentConfig holds the subscription of a stream for one type and the resources
// that it was sent last.
type SentConfig struct {
	Version  string
	Wildcard bool
	Names    []string // subscribed to, besides the wildcard
	// Resources are the subscribed resources, sorted by name.
	Resources []*xdswire.Resource
}
