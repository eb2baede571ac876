package kube

import "sync"

// definitions are the resources that others have defined, by name such as
// gateways.networking.istio.io. The follower of definitions fills them; those
// of the resources wait for theirs.
type definitions struct {
	mu      sync.Mutex
	known   bool // all of them
	present map[string]bool
	waiting map[string][]chan struct{}
}

func newDefinitions() *definitions {
	return &definitions{present: make(map[string]bool), waiting: make(map[string][]chan struct{})}
}

// watch returns what gets a value when the resource was defined, or its
// definition changed. It is for the time before the first change.
func (d *definitions) watch(name string) <-chan struct{} {
	c := make(chan struct{}, 1)
	d.waiting[name] = append(d.waiting[name], c)
	return c
}

// set notes that a resource is defined or not any more.
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

// complete notes that all definitions were read.
func (d *definitions) complete() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = true
}

// lacks reports whether the resource is known not to be defined.
func (d *definitions) lacks(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known && !d.present[name]
}
