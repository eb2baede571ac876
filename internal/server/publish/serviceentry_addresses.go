package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
)

const (
	// addressesInterval is the interval between checks for unwritten addresses.
	addressesInterval = time.Second
	// addressesRetry is the interval between attempts to write to one object. It is also
	// the time in which the registry learns of a write.
	addressesRetry = 30 * time.Second
	// maxFailures is the number of failed writes that ends a check: the others would
	// probably fail, too.
	maxFailures = 8
	// maxObject bounds a ServiceEntry in a response, in bytes.
	maxObject = 4 << 20
)

// AddressesConfig configures Addresses. All fields but Interval are required.
type AddressesConfig struct {
	API     *rest.Config // of the own cluster
	Cluster mesh.ClusterID
	// Unwritten returns the addresses to write.
	Unwritten func() []facts.UnwrittenAddresses
	// Written counts each write.
	Written  func(cluster mesh.ClusterID, result string)
	Interval time.Duration // default 1 s
	Now      func() time.Time
	Log      *slog.Logger
}

// Addresses write the allocated addresses of hosts to the status of their ServiceEntries, so
// that hosts keep them after a restart and other control planes use the same ones.
type Addresses struct {
	cfg AddressesConfig
	problem
}

// NewAddresses returns Addresses. Run writes them.
func NewAddresses(cfg AddressesConfig) *Addresses { return &Addresses{cfg: cfg} }

// Run writes addresses until ctx ends. It is a Task.
func (a *Addresses) Run(ctx context.Context) error {
	client, err := kube.NewBoundedClient(a.cfg.API, maxObject)
	if err != nil {
		return fmt.Errorf("write the addresses of ServiceEntries: %w", err)
	}
	defer client.Close()
	defer a.note("") // the next holder of the Lease reports it
	tick := time.NewTicker(cmp.Or(a.cfg.Interval, addressesInterval))
	defer tick.Stop()
	tried := make(map[string]time.Time) // by object
	for {
		a.look(ctx, client, tried)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look writes the addresses of all objects that it has not tried lately.
func (a *Addresses) look(ctx context.Context, client *kube.Client, tried map[string]time.Time) {
	now := a.cfg.Now()
	unwritten := a.cfg.Unwritten()
	maps.DeleteFunc(tried, func(_ string, at time.Time) bool { return now.Sub(at) >= addressesRetry })
	problem, failures, attempts := "", 0, 0
	for _, u := range unwritten {
		object := u.Namespace + "/" + u.Name
		if _, lately := tried[object]; lately || failures == maxFailures || ctx.Err() != nil {
			continue
		}
		tried[object] = now
		attempts++
		result, err := Updated, write(ctx, client, u)
		if err != nil {
			failures++
			problem, result = fmt.Sprintf("ServiceEntry %s: %v", object, err), Failed
		}
		if ctx.Err() == nil {
			a.cfg.Written(a.cfg.Cluster, result)
		}
	}
	if ctx.Err() == nil && (attempts > 0 || len(unwritten) == 0) {
		a.note(problem)
	}
}

// note sets the problem, and logs it once.
func (a *Addresses) note(problem string) {
	if a.set(problem) {
		a.cfg.Log.Warn("the addresses of hosts cannot be written: they may change when this control plane restarts", "error", problem,
			"fix", "grant patch on serviceentries.networking.istio.io/status")
	}
}

// hostAddress is an address in the status of a ServiceEntry.
type hostAddress struct {
	Value string `json:"value"`
	Host  string `json:"host,omitempty"`
}

// write adds addresses to the status of a ServiceEntry. Hosts that have some in the meantime
// keep them.
func write(ctx context.Context, client *kube.Client, u facts.UnwrittenAddresses) error {
	return client.EditStatus(ctx, "serviceentries", u.Namespace, u.Name, "addresses", func(object []byte) (any, error) {
		if object == nil {
			return nil, nil
		}
		var o struct {
			Status struct {
				Addresses []hostAddress `json:"addresses"`
			} `json:"status"`
		}
		if err := json.Unmarshal(object, &o); err != nil {
			return nil, fmt.Errorf("it is not a ServiceEntry: %w", err)
		}
		was := o.Status.Addresses
		out := slices.Clone(was)
		for _, host := range slices.Sorted(maps.Keys(u.Hosts)) {
			if slices.ContainsFunc(was, func(h hostAddress) bool { return h.Host == host }) {
				continue
			}
			for _, ip := range u.Hosts[host] {
				out = append(out, hostAddress{ip.String(), host})
			}
		}
		if len(out) == len(was) {
			return nil, nil
		}
		return out, nil
	})
}
