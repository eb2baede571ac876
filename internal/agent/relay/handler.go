package relay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// job is a response for a handler, or one with extensions for the proxy.
type job struct {
	response
	message *message
}

// result reports that the first job of a subscription is done. Extensions for the proxy are
// prepared then, and modules are those that they use.
type result struct {
	sub     *subscription
	err     error
	modules []pluginModule
}

// subscribeHandlers subscribes for the handlers on the stream of an Envoy. Applications, which have
// a generator, run beside one.
func (s *session) subscribeHandlers() error {
	if s.node.GetMetadata().GetFields()["GENERATOR"].GetStringValue() != "" {
		return nil
	}
	for _, typeURL := range slices.Sorted(maps.Keys(s.Handlers)) {
		if s.subs[typeURL] != nil {
			continue
		}
		sub, err := s.subscription(typeURL)
		if err != nil {
			return err
		}
		sub.handler = s.Handlers[typeURL]
		sub.content.take(&request{typeURL: typeURL})
		s.enqueue(sub)
	}
	return nil
}

// handle does a job after earlier ones, in a goroutine of its own.
func (s *session) handle(ctx context.Context, sub *subscription, j job) {
	if sub.jobs = append(sub.jobs, j); len(sub.jobs) == 1 {
		s.startJob(ctx, sub)
	}
}

func (s *session) startJob(ctx context.Context, sub *subscription) {
	j := sub.jobs[0]
	if sub.handler == nil {
		s.tasks.Go(func() {
			modules, err := s.preparePlugins(ctx, j.message)
			select {
			case s.results <- result{sub, err, modules}:
			case <-s.ended:
				releaseAll(modules)
			}
		})
		return
	}
	s.tasks.Go(func() {
		resources, err := decodeResources(s.variant, j.message.bytes())
		j.message.data.Free()
		if err == nil {
			err = sub.handler.Handle(sub.typeURL, resources)
		}
		select {
		case s.results <- result{sub, err, nil}:
		case <-s.ended:
		}
	})
}

// takeResult passes prepared extensions on, or answers the control plane in the place of the
// proxy.
func (s *session) takeResult(ctx context.Context, r result) error {
	sub := r.sub
	j := sub.jobs[0]
	if sub.jobs = sub.jobs[1:]; len(sub.jobs) > 0 {
		s.startJob(ctx, sub)
	}
	if sub.handler == nil {
		if r.err != nil {
			return fmt.Errorf("decode extensions: %w", r.err)
		}
		s.keepModules(ctx, j.envelope, r.modules)
		return s.pass(j.response, j.message)
	}
	var problem *rpcstatus.Status
	if r.err != nil {
		problem = refusal(s.log, sub.typeURL, r.err)
	}
	s.answer(sub, j.stream, j.nonce, problem)
	return nil
}

// refusal logs that a handler refused resources, and returns the detail of the NACK.
func refusal(log *slog.Logger, typeURL string, err error) *rpcstatus.Status {
	log.Error("resources from the control plane cannot be used, the previous ones stay",
		"type", xdswire.ShortType(typeURL), "error", err)
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
}
