package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Result is what the requests of one client showed.
type Result struct {
	Client   mesh.ClusterID
	Requests int
	Tally    Tally
	// Local and Gateway are the two hosts that the client's Envoy may choose
	// from, LocalRequests and GatewayRequests how many of the requests it
	// sent to each by its own counters.
	Local, Gateway                 netip.AddrPort
	LocalRequests, GatewayRequests uint64
	// GatewayConnections are those that the other network's gateway has
	// passed on since it started, GatewayBytes is what it passed on during
	// the requests, both directions together.
	GatewayConnections, GatewayBytes uint64
}

// Far is the number of answers from another cluster.
func (r *Result) Far() int {
	n := 0
	for a, count := range r.Tally.Answers {
		if a.Cluster != r.Client {
			n += count
		}
	}
	return n
}

// share bounds what each version must have answered, in percent: about four
// standard deviations around one half for 200 requests.
const minShare, maxShare = 35, 65

// Problems returns what a mesh that works would not have shown.
func (r *Result) Problems() []error {
	var errs []error
	problem := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("client of %s: "+format, append([]any{r.Client}, args...)...))
	}
	if n := len(r.Tally.Failed); n > 0 {
		problem("%d of %d requests failed, the first: %w", n, r.Requests, r.Tally.Failed[0])
	}
	versions := r.Tally.Versions()
	for _, version := range []string{"v1", "v2"} {
		n := versions[version]
		if n*100 < minShare*r.Requests || n*100 > maxShare*r.Requests {
			problem("%s answered %d of %d requests, want %d%% to %d%%", version, n, r.Requests, minShare, maxShare)
		}
	}
	want := clientIdentity().String()
	for a, n := range r.Tally.Answers {
		switch a.Peer {
		case want:
		case "":
			problem("%d answers of %s carry no identity of the caller in x-forwarded-client-cert", n, a.Version)
		default:
			problem("%d answers of %s name the caller %s, want %s", n, a.Version, a.Peer, want)
		}
	}
	if far := uint64(r.Far()); far != r.GatewayRequests {
		problem("%d answers came from the other cluster, but its Envoy sent %d requests to the gateway %s",
			far, r.GatewayRequests, r.Gateway)
	}
	if r.GatewayConnections == 0 {
		problem("the gateway %s counts no connection to helloworld", r.Gateway)
	}
	if r.GatewayBytes == 0 {
		problem("the gateway %s counts no bytes to or from helloworld", r.Gateway)
	}
	return errs
}

// Check sends requests from each client, one client after the other, and
// returns what they showed. The error is about the measurement; whether the
// mesh works is what Problems of the results say. The proxies count all
// requests, so nothing else may be under way.
func (m *Mesh) Check(ctx context.Context, requests int) ([]Result, error) {
	ctx, cancel := m.bind(ctx)
	defer cancel()
	var out []Result
	for i, c := range m.clients {
		r, err := m.checkClient(ctx, c, m.clusters[i], m.clusters[1-i], requests)
		if err != nil {
			return out, errors.Join(fmt.Errorf("check the client of %s: %w", c.Cluster, err), context.Cause(ctx))
		}
		out = append(out, r)
	}
	return out, nil
}

func (m *Mesh) checkClient(ctx context.Context, c *Client, near, far *cluster, requests int) (Result, error) {
	r := Result{
		Client:   c.Cluster,
		Requests: requests,
		Local:    near.server.at(helloworldPort),
		Gateway:  far.gateway.at(mesh.PortEastWest),
	}
	hosts, err := m.hostRequests(ctx, c.pod.admin(), target().String())
	if err != nil {
		return r, err
	}
	before, err := m.gatewayCounters(ctx, far.gateway)
	if err != nil {
		return r, err
	}
	r.Tally = c.send(ctx, requests)
	if err := ctx.Err(); err != nil {
		return r, err
	}
	after, err := m.gatewayCounters(ctx, far.gateway)
	if err != nil {
		return r, err
	}
	hostsAfter, err := m.hostRequests(ctx, c.pod.admin(), target().String())
	if err != nil {
		return r, err
	}
	r.LocalRequests = hostsAfter[r.Local.String()] - hosts[r.Local.String()]
	r.GatewayRequests = hostsAfter[r.Gateway.String()] - hosts[r.Gateway.String()]
	r.GatewayConnections = after.connections
	r.GatewayBytes = after.bytes - before.bytes
	return r, nil
}

// route says by which way the answers of a version came.
func (r *Result) route(a Answer) string {
	if a.Cluster == r.Client {
		return "local " + r.Local.String()
	}
	return "gateway " + r.Gateway.String()
}

// percent renders n of all, such as 47.5%.
func percent(n, all int) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(all))
}

// joinProblems makes one error of the problems of all results, one a line.
func joinProblems(results []Result) error {
	var lines []string
	for _, r := range results {
		for _, p := range r.Problems() {
			lines = append(lines, "  "+p.Error())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New("the mesh does not do what it should:\n" + strings.Join(lines, "\n"))
}
