package demo

import "time"

// slowStep is how long a step may take before the person is told what is
// under way.
const slowStep = 3 * time.Second

// watch tells of a step that takes long what is under way, and again when that
// has changed, ever more rarely, until the returned function is called.
func (m *Mesh) watch(underWay func() string) (stop func()) {
	if m.opts.Note == nil {
		return func() {}
	}
	return watch(slowStep, underWay, m.opts.Note)
}

// watch tells for the first time after wait.
func watch(wait time.Duration, underWay func() string, tell func(string)) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(wait)
		defer tick.Stop()
		last := ""
		for {
			select {
			case <-tick.C:
				if text := underWay(); text != last {
					tell(text)
					last = text
					wait *= 2
					tick.Reset(wait)
				}
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}
