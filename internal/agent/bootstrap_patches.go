package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/relay"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// patchesWait bounds the wait for the first patches of the bootstrap. While the control plane is
// away, Envoy would have no configuration either.
const patchesWait = 5 * time.Minute

const withoutPatches = "start without patches with: BOOTSTRAP_XDS_AGENT=false"

var errNoPatches = fmt.Errorf("the control plane did not send the patches of Envoy's bootstrap within %s; %s", patchesWait, withoutPatches)

// bootstrapPatches receives the patches of Envoy's bootstrap: the first ones on a stream of its
// own, before Envoy starts, and later ones as a handler of the agent's other streams.
type bootstrapPatches struct {
	log     *slog.Logger
	config  bootstrap.Config // without patches
	stream  relay.Stream
	arrived chan struct{} // closed after the first patches
	timeout time.Duration

	mu    sync.Mutex
	first []byte
	err   error // of first
}

// newBootstrapPatches returns nil if the agent requests no patches.
func newBootstrapPatches(cfg *config.Config, opts Options) *bootstrapPatches {
	if !cfg.PatchesBootstrap {
		return nil
	}
	p := &bootstrapPatches{log: opts.Log, config: cfg.Config, arrived: make(chan struct{}), timeout: patchesWait}
	p.stream = relay.Stream{
		Node: cfg.Node, Metadata: cfg.Metadata, Log: opts.Log, Now: opts.Now, Rand: opts.newRand(),
		Handlers: map[string]relay.Handler{xdswire.BootstrapType: p.handler()},
	}
	return p
}

func (p *bootstrapPatches) handler() relay.Handler { return relay.BootstrapPatch(p.take) }

// take keeps the first patches, and reports later ones, which need a new start of Envoy.
func (p *bootstrapPatches) take(patch []byte) error {
	c := p.config
	c.Patch = patch
	_, err := bootstrap.Marshal(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.arrived:
		if err == nil && !bytes.Equal(patch, p.first) {
			p.log.Warn("the patches of Envoy's bootstrap changed: they apply when the proxy starts again")
		}
	default:
		p.first, p.err = patch, err
		close(p.arrived)
	}
	return err
}

// wait requests the first patches with call, and returns them when they arrive. ok is false if
// the agent ends before.
func (p *bootstrapPatches) wait(ctx, serving context.Context, quit <-chan struct{}, call relay.Call) (patch []byte, ok bool, err error) {
	waiting, cancel := context.WithTimeoutCause(ctx, p.timeout, errNoPatches)
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	go func() {
		defer cancel()
		select {
		case <-p.arrived:
		case <-quit:
		case <-waiting.Done():
		}
	}()
	p.log.Info("envoy starts after the patches of its bootstrap have come from the control plane (BOOTSTRAP_XDS_AGENT)", "wait_at_most", p.timeout)
	p.stream.Call = call
	if err := p.stream.Run(waiting); err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.arrived:
		if p.err != nil {
			return nil, false, fmt.Errorf("%w; %s", p.err, withoutPatches)
		}
		p.log.Info("received the patches of Envoy's bootstrap", "bytes", len(p.first))
		return p.first, true, nil
	default:
	}
	switch {
	case serving.Err() != nil:
		return nil, false, errServing
	case errors.Is(context.Cause(waiting), errNoPatches):
		return nil, false, errNoPatches
	}
	return nil, false, nil
}
