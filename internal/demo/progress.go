package demo

import "time"

// slowStep is the time after which a step is reported as slow.
const slowStep = 3 * time.Second

// watch reports the progress of a slow step, and again when it has changed, at growing
// intervals, until the returned function is called.
func (m *Mesh) watch(underWay func() string) (stop func()) {
	if m.opts.Note == nil {
		return func() {}
	}
	return watch(slowStep, underWay, m.opts.Note)
}

// watch reports for the first time after wait.
func watch(wait time.Duration, underWay func() string, report func(string)) (stop func()) {
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
					report(text)
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
