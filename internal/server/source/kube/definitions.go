package kube

import "sync"

// definitions holds the installed custom resources, by name such as
// gateways.networking.istio.io. The follower of CustomResourceDefinitions updates it;
// the followers of the resources wait for them.
type definitions struct {
	mu      sync.Mutex
	known   bool // set after the first complete list
	present map[string]bool
	waiting map[string][]chan struct{}
}

func newDefinitions() *definitions {
	return &definitions{present: make(map[string]bool), waiting: make(map[string][]chan struct{})}
}

// watch returns a channel that gets a value when the resource is defined or its
// definition changes. Call it before the first set.
func (d *definitions) watch(name string) <-chan struct{} {
	c := make(chan struct{}, 1)
	d.waiting[name] = append(d.waiting[name], c)
	return c
}

// set records whether a resource is defined.
func (d *definitions) set(name string, present bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting[name] == nil {
		return
	}
	d.present[name] = present
	for _, c := range d.waiting[name] {
		if !present {
			break
		}
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// complete records that all definitions were read.
func (d *definitions) complete() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = true
}

// lacks reports whether the resource is certainly not defined.
func (d *definitions) lacks(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known && !d.present[name]
}
