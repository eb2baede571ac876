package relay

import (
	"log/slog"
	"maps"
	"slices"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// job is a response for a handler.
type job struct {
	response
	message *message
}

// result reports that the handler of a subscription has taken its first job.
type result struct {
	sub *subscription
	err error
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

// handle gives a response to its handler, after earlier ones.
func (s *session) handle(sub *subscription, j job) {
	if sub.jobs = append(sub.jobs, j); len(sub.jobs) == 1 {
		s.startJob(sub)
	}
}

func (s *session) startJob(sub *subscription) {
	j := sub.jobs[0]
	s.tasks.Go(func() {
		resources, err := decodeResources(s.variant, j.message.bytes())
		j.message.data.Free()
		if err == nil {
			err = sub.handler.Handle(sub.typeURL, resources)
		}
		select {
		case s.results <- result{sub, err}:
		case <-s.ended:
		}
	})
}

// takeResult answers the control plane in the place of the proxy.
func (s *session) takeResult(r result) {
	sub := r.sub
	j := sub.jobs[0]
	if sub.jobs = sub.jobs[1:]; len(sub.jobs) > 0 {
		s.startJob(sub)
	}
	var problem *rpcstatus.Status
	if r.err != nil {
		problem = refusal(s.log, sub.typeURL, r.err)
	}
	s.answer(sub, j.stream, j.nonce, problem)
}

// refusal logs that a handler refused resources, and returns the detail of the NACK.
func refusal(log *slog.Logger, typeURL string, err error) *rpcstatus.Status {
	log.Error("resources from the control plane cannot be used, the previous ones stay",
		"type", xdswire.ShortType(typeURL), "error", err)
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
}
