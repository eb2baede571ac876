package xdswire

import (
	"strconv"
)

// Wildcard is the name that subscribes to everything.
const Wildcard = "*"

// Subscription is a stream's subscription to one type: everything, or names, or both.
type Subscription struct {
	Wildcard bool
	Names    *NameSet
}

// Has reports whether the subscription covers the name.
func (s Subscription) Has(name string) bool { return s.Wildcard || s.Names.Has(name) }

// Nonces makes the nonces of a stream. They are unique within the stream only, and so
// they are short.
type Nonces struct{ last uint64 }

// Next returns a new nonce.
func (n *Nonces) Next() string {
	n.last++
	return strconv.FormatUint(n.last, 36)
}
