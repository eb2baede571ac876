package units

import (
	"cmp"
	"iter"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// Key identifies a unit in its view.
type Key struct {
	Kind KeyKind
	// Name is the MeshService.Key of a service or the requested name of a secret.
	Name string
	// Number is the number of a port or of a fixed unit.
	Number uint32
}

// KeyKind is a kind of keys.
type KeyKind uint8

// The kinds of keys.
const (
	FixedKey   KeyKind = iota // units that every view of the type has, numbered from 0, and listed ones
	ServiceKey                // a service
	PortKey                   // a TCP port number
	SecretKey                 // a requested secret
	AddedKey                  // additions of EnvoyFilters; the last, so that resources of other keys win their names
)

// Compare orders keys.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Name, other.Name), cmp.Compare(k.Number, other.Number))
}

// Keys describes the keys of a view's units, and the facts that the units read.
type Keys struct {
	// Fixed is the number of fixed units. FixedFacts holds the kinds of facts that they
	// read, whichever the keys of the facts.
	Fixed      int
	FixedFacts snapshot.Kinds
	// Listed holds the keys of further units, which read FixedFacts, too.
	Listed []Key
	// ServiceFacts holds the kinds of facts of its service that the unit of a service
	// reads. Without any, there are no such units.
	ServiceFacts snapshot.Kinds
	// PortFacts holds the kinds of facts of its services that the unit of a port number
	// reads. Without any, there are no such units.
	PortFacts snapshot.Kinds

	Scope   proxy.Scope // the services that a unit may read
	secrets *Secrets    // for SecretKey
}

// Reads returns the kinds of facts that the units read. Changes of other kinds do not
// concern the view.
func (k Keys) Reads() snapshot.Kinds {
	reads := k.FixedFacts | k.ServiceFacts | k.PortFacts
	if k.secrets != nil {
		reads |= snapshot.SecretFacts
	}
	return reads
}

// All iterates over the keys of all units, and maybe of some that the view does not have.
func (k Keys) All(s *snapshot.Snapshot) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		for key := range k.withServices(s) {
			if !yield(key) {
				return
			}
		}
	}
}

// withServices iterates over the same keys as All, and over the services of some of them.
func (k Keys) withServices(s *snapshot.Snapshot) iter.Seq2[Key, *snapshot.MeshService] {
	return func(each func(Key, *snapshot.MeshService) bool) {
		yield := func(key Key) bool { return each(key, nil) }
		if !k.fixed(yield) {
			return
		}
		if k.secrets != nil {
			for _, name := range k.secrets.names.Names() {
				if !yield(Key{Kind: SecretKey, Name: name}) {
					return
				}
			}
		}
		if k.ServiceFacts|k.PortFacts == 0 {
			return
		}
		if namespaces := k.Scope.Namespaces(); namespaces != nil {
			if k.within(s, namespaces, yield) && k.ServiceFacts&snapshot.ReferrerFacts != 0 {
				destinations(s, namespaces, yield)
			}
			return
		}
		if k.ServiceFacts != 0 {
			for key, svc := range s.Services.All() {
				if !each(Key{Kind: ServiceKey, Name: key}, svc) {
					return
				}
			}
		}
		if k.PortFacts != 0 {
			for number := range s.Ports.All() {
				if !yield(Key{Kind: PortKey, Number: number}) {
					return
				}
			}
		}
	}
}

// fixed yields the keys of fixed and of listed units.
func (k Keys) fixed(yield func(Key) bool) bool {
	for i := range k.Fixed {
		if !yield(Key{Number: uint32(i)}) {
			return false
		}
	}
	for _, key := range k.Listed {
		if !yield(key) {
			return false
		}
	}
	return true
}

// Units iterates over all units of a view.
func Units(v View, s *snapshot.Snapshot) iter.Seq2[Key, Unit] {
	return func(yield func(Key, Unit) bool) {
		of, _ := v.(serviceView)
		for key, svc := range v.Keys().withServices(s) {
			var u Unit
			if of != nil && svc != nil {
				u = of.serviceUnit(s, svc)
			} else {
				u = v.Unit(s, key)
			}
			if u != nil && !yield(key, u) {
				return
			}
		}
	}
}

// serviceView is a View with a unit for each service. It finds the unit without a lookup of the
// service.
type serviceView interface {
	serviceUnit(*snapshot.Snapshot, *snapshot.MeshService) Unit
}

// within yields the keys for the services of some namespaces. It reports whether to go on.
func (k Keys) within(s *snapshot.Snapshot, namespaces []string, yield func(Key) bool) bool {
	ports := make(map[uint32]struct{})
	for svc := range proxy.ServicesIn(s, namespaces) {
		if k.ServiceFacts != 0 && !yield(Key{Kind: ServiceKey, Name: svc.Key}) {
			return false
		}
		if k.PortFacts != 0 {
			for i := range svc.Ports {
				ports[svc.Ports[i].Number] = struct{}{}
			}
		}
	}
	for number := range ports {
		if !yield(Key{Kind: PortKey, Number: number}) {
			return false
		}
	}
	return true
}

// destinations yields the keys of the services outside some namespaces that VirtualServices
// route to.
func destinations(s *snapshot.Snapshot, except []string, yield func(Key) bool) {
	for host := range s.Referrers.All() {
		svc := s.Services.Get(host)
		if svc == nil {
			continue
		}
		if !slices.Contains(except, svc.Namespace) && !yield(Key{Kind: ServiceKey, Name: host}) {
			return
		}
		for i := range svc.Rivals {
			ns := svc.Rivals[i].Namespace
			if !slices.Contains(except, ns) && !yield(Key{Kind: ServiceKey, Name: snapshot.FurtherKey(host, ns)}) {
				return
			}
		}
	}
}

// unkeyed holds the kinds of facts that concern all units that read them.
const unkeyed = snapshot.TrustFacts | snapshot.MeshFacts

// Touched iterates over the keys of the units that changes may concern, and maybe over
// keys that the view does not have. It may repeat a key. After changes with Everywhere, the
// caller uses All instead.
func (k Keys) Touched(s *snapshot.Snapshot, c *snapshot.Changes) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		if (k.ServiceFacts|k.PortFacts)&c.Kinds()&unkeyed != 0 {
			for key := range k.All(s) {
				if !yield(key) {
					return
				}
			}
		} else if k.FixedFacts&c.Kinds() != 0 && !k.fixed(yield) {
			return
		}
		if k.secrets != nil {
			for name := range k.secrets.touched(c) {
				if !yield(Key{Kind: SecretKey, Name: name}) {
					return
				}
			}
		}
		if k.ServiceFacts != 0 {
			for key := range c.ServiceKeys(s, k.ServiceFacts) {
				if !yield(Key{Kind: ServiceKey, Name: key}) {
					return
				}
			}
		}
		if k.PortFacts != 0 {
			for number := range c.PortNumbers(s, k.PortFacts) {
				if !yield(Key{Kind: PortKey, Number: number}) {
					return
				}
			}
		}
	}
}
