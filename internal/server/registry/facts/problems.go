package facts

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ProblemKind is a kind of Problem.
type ProblemKind uint8

// The kinds of problems.
const (
	MissingReference  ProblemKind = iota // a name that no object has
	UnusableDelegate                     // a delegate of a VirtualService without effect
	UnopenedServer                       // a server of a Gateway that another one precludes
	SharedHost                           // a host that several objects define
	SharedAddress                        // an address of two Services
	RepeatedExtension                    // an extension of two EnvoyFilters
	ClosedNetwork                        // a network without a usable gateway
	BeyondLimit                          // an object beyond a limit of its namespace
)

// Problem is a fault that only several objects together show.
type Problem struct {
	Kind ProblemKind
	// Object is the object at fault. It is zero for a fault of the whole mesh.
	Object snapshot.Key
	// Field is the path of the faulty field, or "". Refers is a missing host of
	// destinations, whose field is not known.
	Field, Refers string
	Text          string
}
