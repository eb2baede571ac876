package xds

import (
	"cmp"
	"sync"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// Health receives the reports of proxies about their workloads. It must not block.
type Health interface {
	// Report reports the state of the workload behind a stream. An empty problem
	// means that it is healthy.
	Report(stream string, who mesh.Caller, n proxy.Node, problem string)
	// Gone reports the end of the stream.
	Gone(stream string)
}

// reportHealth passes reports on to Access.Health until the stream has ended. A report
// received meanwhile is dropped.
func (s *service) reportHealth(sess *session, caller mesh.Caller) (ended func()) {
	h, sub := s.access.Health, sess.sub
	if h == nil {
		return func() {}
	}
	var mu sync.Mutex
	over := false
	sess.health = func(problem string) {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			h.Report(sub.id, caller, sub.node, problem)
		}
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		h.Gone(sub.id)
	}
}

// takeHealth passes on a report of the peer.
func (s *session) takeHealth(r request) {
	if s.health == nil {
		return
	}
	problem := ""
	if e := r.GetErrorDetail(); e != nil {
		problem = cmp.Or(clip(e.GetMessage()), "no reason was given")
	}
	s.health(problem)
}
