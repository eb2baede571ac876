package demo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// maxAdminAnswer bounds a response of an admin interface, in bytes.
const maxAdminAnswer = 64 << 20

// get reads http://addr/path.
func (m *Mesh) get(ctx context.Context, addr netip.AddrPort, path string) ([]byte, error) {
	address := "http://" + addr.String() + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := m.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("GET %s: %w", address, err)
	case len(data) > maxAdminAnswer:
		return nil, fmt.Errorf("GET %s: more than %d bytes", address, maxAdminAnswer)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("GET %s: status %s: %s", address, resp.Status, strings.TrimSpace(string(data[:min(len(data), 200)])))
	}
	return data, nil
}

// hostRequests returns the number of requests that the Envoy with this admin address has
// sent to each host of the cluster: its counter rq_total.
func (m *Mesh) hostRequests(ctx context.Context, admin netip.AddrPort, cluster string) (map[string]uint64, error) {
	page, err := m.get(ctx, admin, "/clusters")
	if err != nil {
		return nil, err
	}
	return parseHostRequests(page, cluster)
}

// parseHostRequests reads lines such as CLUSTER::127.1.0.11:5000::rq_total::98.
func parseHostRequests(page []byte, cluster string) (map[string]uint64, error) {
	out := map[string]uint64{}
	for line := range strings.Lines(string(page)) {
		line, ours := strings.CutPrefix(strings.TrimSpace(line), cluster+"::")
		host, count, counts := strings.Cut(line, "::rq_total::")
		if !ours || !counts {
			continue
		}
		n, err := strconv.ParseUint(count, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read Envoy's /clusters: rq_total of %s: %w", host, err)
		}
		out[host] = n
	}
	return out, nil
}

// passed is the traffic that went through a gateway to one service.
type passed struct{ connections, bytes uint64 }

// gatewayCounters reads the counters of a gateway's TCP proxy for the target's server name.
func (m *Mesh) gatewayCounters(ctx context.Context, gateway pod) (passed, error) {
	prefix := "tcp." + target().SNI() + "."
	query := url.Values{"filter": {"^" + regexp.QuoteMeta(prefix)}}
	page, err := m.get(ctx, gateway.admin(), "/stats?"+query.Encode())
	if err != nil {
		return passed{}, err
	}
	return parsePassed(page, prefix)
}

// parsePassed reads lines such as PREFIXdownstream_cx_total: 2.
func parsePassed(page []byte, prefix string) (passed, error) {
	var out passed
	for line := range strings.Lines(string(page)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		var counter *uint64
		switch strings.TrimPrefix(name, prefix) {
		case "downstream_cx_total":
			counter = &out.connections
		case "downstream_cx_rx_bytes_total", "downstream_cx_tx_bytes_total":
			counter = &out.bytes
		default:
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return passed{}, fmt.Errorf("read Envoy's /stats: %s: %w", name, err)
		}
		*counter += n
	}
	return out, nil
}
