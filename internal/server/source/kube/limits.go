package kube

import (
	"cmp"
	"errors"
	"fmt"
)

// Limits bounds the resources that one cluster may use. The zero value stands for the
// defaults.
type Limits struct {
	// Objects bounds the number of objects; default 300,000.
	Objects int64
	// Bytes bounds the size of all objects, as encoded without unused fields; default
	// 256 MiB.
	Bytes int64
	// Object bounds the size of one object as sent, in bytes; default 4 MiB, which is
	// more than an API server stores.
	Object int
	// List bounds the size of one list as sent, in bytes; default 4 GiB.
	List int64
}

func (l Limits) withDefaults() Limits {
	l.Objects = cmp.Or(l.Objects, 300_000)
	l.Bytes = cmp.Or(l.Bytes, 256<<20)
	l.Object = cmp.Or(l.Object, 4<<20)
	l.List = cmp.Or(l.List, 4<<30)
	return l
}

// errLimit reports that the cluster exceeds a limit.
var errLimit = errors.New("is more than is read")

// hold adds to the number and the size of the objects. It adds nothing and returns an
// error if that exceeds a limit.
func (s *shared) hold(objects, bytes int64) error {
	o, b := s.objects.Add(objects), s.bytes.Add(bytes)
	var err error
	switch {
	case objects > 0 && o > s.Limits.Objects:
		err = fmt.Errorf("the cluster has more than %d objects, which %w", s.Limits.Objects, errLimit)
	case bytes > 0 && b > s.Limits.Bytes:
		err = fmt.Errorf("the objects of the cluster have more than %d bytes, which %w", s.Limits.Bytes, errLimit)
	default:
		return nil
	}
	s.objects.Add(-objects)
	s.bytes.Add(-bytes)
	return err
}
