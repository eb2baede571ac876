package metrics

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const (
	// askAgain is the interval after which the workloads of all identities are asked for again, and
	// askNew the least interval between two requests.
	askAgain, askNew = time.Minute, time.Second
	askTimeout       = 5 * time.Second
)

// Peers knows the workloads of the identities that call the workload of the agent. It asks for those
// that metrics have, so its table is as large as the number of callers.
type Peers struct {
	// Ask returns the workloads of identities that belong to exactly one workload.
	Ask func(ctx context.Context, identities []string) (map[string]mesh.WorkloadLabels, error)
	Log *slog.Logger

	mu    sync.Mutex // guards what follows
	known map[string]mesh.WorkloadLabels
	news  chan struct{} // capacity 1: an identity is new
}

// NewPeers returns Peers. Run asks.
func NewPeers(ask func(context.Context, []string) (map[string]mesh.WorkloadLabels, error), log *slog.Logger) *Peers {
	return &Peers{Ask: ask, Log: log, known: make(map[string]mesh.WorkloadLabels), news: make(chan struct{}, 1)}
}

// workload returns what is known of the workload of an identity.
func (p *Peers) workload(identity string) mesh.WorkloadLabels {
	if p == nil || identity == "" {
		return mesh.WorkloadLabels{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.known[identity]
	if !ok && len(p.known) < xdswire.MaxWorkloads {
		p.known[identity] = w
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
	return w
}

// Run asks for the workloads of new identities at once, and of all of them from time to time, until ctx
// ends. After a failed request, such as one to another control plane, metrics keep what is known.
func (p *Peers) Run(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if len(p.identities()) > 0 {
			again = time.After(askAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.news:
		case <-again:
		}
		p.ask(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(askNew):
		}
	}
}

func (p *Peers) identities() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.known))
}

func (p *Peers) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	identities := p.identities()
	answer, err := p.Ask(ctx, identities)
	if err != nil {
		p.Log.Debug("the control plane does not name the workloads of callers in metrics", "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, identity := range identities {
		p.known[identity] = answer[identity]
	}
}
