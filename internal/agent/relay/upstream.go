package relay

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// upstream is a stream to the control plane.
type upstream struct {
	requests chan<- *message // are sent in order; none after the end
	cancel   context.CancelCauseFunc
}

// event reports what happened to a stream to the control plane: it opened, it has a
// response, or it ended with err.
type event struct {
	opened *upstream

	response *message
	envelope *envelope

	err error
}

// connect keeps a stream to the control plane open until ctx ends.
func (s *session) connect(ctx context.Context) {
	retry(ctx, s.Jitter, func(ctx context.Context) (worked bool, err error) {
		var p progress
		err = s.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return s.converse(ctx, conn, &p)
		})
		if p.opened {
			s.counters.terminations.add(err)
		} else {
			s.counters.failures.Add(1)
		}
		s.emit(event{err: err})
		return p.responded, err
	}, func(err error, wait time.Duration) {
		s.log.Warn("the relay has no stream to the control plane at the moment: the proxy keeps its configuration",
			"error", err, "retry_in", wait.Round(time.Millisecond).String())
	})
}

// emit passes an event to the session. It returns false after the end of the session.
func (s *session) emit(e event) bool {
	select {
	case s.upstreams <- e:
		return true
	case <-s.ended:
		return false
	}
}

// progress is how far a stream has come.
type progress struct{ opened, responded bool }

// converse opens a stream and keeps it until it ends.
func (s *session) converse(ctx context.Context, conn grpc.ClientConnInterface, p *progress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel(nil)
	method, _ := grpc.MethodFromServerStream(s.down)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method,
		grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxResponse))
	if err != nil {
		return err
	}
	requests := make(chan *message)
	sender.Go(func() {
		for {
			select {
			case m := <-requests:
				if err := stream.SendMsg(m); err != nil {
					return // RecvMsg has the cause
				}
			case <-ctx.Done():
				return
			}
		}
	})
	if p.opened = s.emit(event{opened: &upstream{requests, cancel}}); !p.opened {
		return context.Cause(ctx)
	}
	for {
		var m message
		if err := stream.RecvMsg(&m); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		e, err := decodeEnvelope(s.variant, m.bytes())
		if err != nil {
			return err
		}
		p.responded = true
		if !s.emit(event{response: &m, envelope: e}) {
			return context.Cause(ctx)
		}
	}
}
