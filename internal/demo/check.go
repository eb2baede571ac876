package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Result is the outcome of the requests of one client.
type Result struct {
	Client   mesh.ClusterID
	Requests int
	Tally    Tally
	// Local and Gateway are the two hosts that the client's Envoy may choose. LocalRequests
	// and GatewayRequests are the requests that it sent to each by its own counters.
	Local, Gateway                 netip.AddrPort
	LocalRequests, GatewayRequests uint64
	// GatewayConnections is the number of connections that the other network's gateway has
	// passed on since its start. GatewayBytes is its traffic during the requests, in both
	// directions.
	GatewayConnections, GatewayBytes uint64
}

// Far returns the number of answers from the other cluster.
func (r *Result) Far() int {
	n := 0
	for a, count := range r.Tally.Answers {
		if a.Cluster != r.Client {
			n += count
		}
	}
	return n
}

// fairAnswers bounds the answers of each of two equally likely versions to n requests: one
// half, plus or minus 4.24 standard deviations of √n/2. For 200 requests that is 70 to 130;
// chance leaves the range once in 40,000.
func fairAnswers(n int) (least, most int) {
	fair := func(k int) bool {
		off := int64(2*k - n) // twice the deviation
		return off*off <= 18*int64(n)
	}
	least = sort.Search(n/2, fair)
	return least, n - least
}

// Problems returns the differences from a mesh that works.
func (r *Result) Problems() []error {
	var errs []error
	problem := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("client of %s: "+format, append([]any{r.Client}, args...)...))
	}
	if n := len(r.Tally.Failed); n > 0 {
		problem("%d of %s failed, the first: %w", n, count(r.Requests, "request"), r.Tally.Failed[0])
	}
	versions := r.Tally.Versions()
	least, most := fairAnswers(r.Requests)
	for _, version := range []string{"v1", "v2"} {
		if n := versions[version]; n < least || n > most {
			problem("%s answered %d of %s, want %d to %d", version, n, count(r.Requests, "request"), least, most)
		}
	}
	want := clientIdentity().String()
	for a, n := range r.Tally.Answers {
		switch a.Peer {
		case want:
		case "":
			problem("%s of %s without the caller's identity in x-forwarded-client-cert", count(n, "answer"), a.Version)
		default:
			problem("%s of %s to the caller %s, want %s", count(n, "answer"), a.Version, a.Peer, want)
		}
	}
	far := r.Far()
	if uint64(far) != r.GatewayRequests {
		problem("the other cluster answered %d times, but the client's Envoy counts %d at the gateway %s",
			far, r.GatewayRequests, r.Gateway)
	}
	if far > 0 && r.GatewayConnections == 0 {
		problem("the gateway %s counts no connection to helloworld", r.Gateway)
	}
	if far > 0 && r.GatewayBytes == 0 {
		problem("the gateway %s counts no bytes to or from helloworld", r.Gateway)
	}
	return errs
}

// Check sends requests from one client after the other and returns the outcomes. The error
// is about the measurement; Problems of the results reports whether the mesh works. The
// proxies count all requests, so no other requests may be in flight.
func (m *Mesh) Check(ctx context.Context, requests int) ([]Result, error) {
	ctx, cancel := m.bind(ctx)
	defer cancel()
	var (
		out  []Result
		sent atomic.Int64
	)
	defer m.watch(func() string {
		return fmt.Sprintf("sent %d of %d requests", sent.Load(), requests*len(m.clients))
	})()
	for i, c := range m.clients {
		r, err := m.checkClient(ctx, c, m.clusters[i], m.clusters[1-i], requests, &sent)
		if err != nil {
			return out, errors.Join(fmt.Errorf("check the client of %s: %w", c.Cluster, err), context.Cause(ctx))
		}
		out = append(out, r)
	}
	return out, nil
}

func (m *Mesh) checkClient(ctx context.Context, c *Client, near, far *cluster, requests int, sent *atomic.Int64) (Result, error) {
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
	r.Tally = c.send(ctx, requests, sent)
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

// route names the host that the answers came through.
func (r *Result) route(a Answer) string {
	if a.Cluster == r.Client {
		return "local " + r.Local.String()
	}
	return "gateway " + r.Gateway.String()
}

// shares renders the percentage of each count, such as 47.5%. The percentages add up to
// 100.0%: the counts with the largest remainders are rounded up.
func shares(counts []int) []string {
	all := 0
	for _, n := range counts {
		all += n
	}
	out := make([]string, len(counts))
	if all == 0 {
		for i := range out {
			out[i] = "-"
		}
		return out
	}
	const whole = 1000 // tenths of a percent
	tenths, byLoss := make([]int, len(counts)), make([]int, len(counts))
	left := whole
	for i, n := range counts {
		tenths[i], byLoss[i] = n*whole/all, i
		left -= tenths[i]
	}
	slices.SortStableFunc(byLoss, func(i, j int) int { return cmp.Compare(counts[j]*whole%all, counts[i]*whole%all) })
	for _, i := range byLoss[:left] {
		tenths[i]++
	}
	for i, n := range tenths {
		out[i] = fmt.Sprintf("%d.%d%%", n/10, n%10)
	}
	return out
}

// count renders a number of things: "1 request", "2 requests".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// joinProblems returns the problems of all results as one error, one problem a line.
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
