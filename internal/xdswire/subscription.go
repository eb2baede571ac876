package xdswire

import (
	"strconv"
)

// Wildcard is the name that subscribes to everything.
const Wildcard = "*"

// Subscription is what a stream asked for of one type: everything, or names,
// or both.
type Subscription struct {
	Wildcard bool
	Names    *NameSet
}

// Has reports whether the subscription covers the name.
func (s Subscription) Has(name string) bool { return s.Wildcard || s.Names.Has(name) }

// Nonces counts the responses of a stream. Nonces need to be unlike each
// other within one stream only, so they are short.
type Nonces struct{ last uint64 }

// Next is a nonce that was not used before.
func (n *Nonces) Next() string {
	n.last++
	return strconv.FormatUint(n.last, 36)
}
