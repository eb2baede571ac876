package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// maxAdminAnswer bounds what is read from an admin interface, in bytes.
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

// hostRequests returns how many requests the Envoy with this admin address
// has sent to each host of the cluster: its counter rq_total.
func (m *Mesh) hostRequests(ctx context.Context, admin netip.AddrPort, cluster string) (map[string]uint64, error) {
	data, err := m.get(ctx, admin, "/clusters?format=json")
	if err != nil {
		return nil, err
	}
	return parseHostRequests(data, cluster)
}

func parseHostRequests(data []byte, cluster string) (map[string]uint64, error) {
	var page struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    uint16 `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Stats []struct {
					Name  string      `json:"name"`
					Value json.Number `json:"value"`
				} `json:"stats"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(data, &page); err != nil {
		return nil, fmt.Errorf("read Envoy's /clusters: %w", err)
	}
	out := map[string]uint64{}
	for _, c := range page.Clusters {
		if c.Name != cluster {
			continue
		}
		for _, h := range c.Hosts {
			host := net.JoinHostPort(h.Address.Socket.Address, strconv.Itoa(int(h.Address.Socket.Port)))
			out[host] = 0
			for _, s := range h.Stats {
				if s.Name != "rq_total" || s.Value == "" {
					continue // a counter at zero has no value
				}
				n, err := strconv.ParseUint(s.Value.String(), 10, 64)
				if err != nil {
					return nil, fmt.Errorf("read Envoy's /clusters: rq_total of %s: %w", host, err)
				}
				out[host] = n
			}
		}
	}
	return out, nil
}

// passed is what went through a gateway to one service.
type passed struct{ connections, bytes uint64 }

// gatewayCounters reads from a gateway what it passed on to the target: the
// counters of its TCP proxy for the target's server name.
func (m *Mesh) gatewayCounters(ctx context.Context, gateway pod) (passed, error) {
	prefix := "tcp." + target().SNI() + "."
	query := url.Values{"format": {"json"}, "filter": {"^" + regexp.QuoteMeta(prefix)}}
	data, err := m.get(ctx, gateway.admin(), "/stats?"+query.Encode())
	if err != nil {
		return passed{}, err
	}
	return parsePassed(data, prefix)
}

func parsePassed(data []byte, prefix string) (passed, error) {
	var page struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"` // histograms have none
		} `json:"stats"`
	}
	if err := json.Unmarshal(data, &page); err != nil {
		return passed{}, fmt.Errorf("read Envoy's /stats: %w", err)
	}
	var out passed
	for _, s := range page.Stats {
		var counter *uint64
		switch strings.TrimPrefix(s.Name, prefix) {
		case "downstream_cx_total":
			counter = &out.connections
		case "downstream_cx_rx_bytes_total", "downstream_cx_tx_bytes_total":
			counter = &out.bytes
		default:
			continue
		}
		n, err := strconv.ParseUint(string(s.Value), 10, 64)
		if err != nil {
			return passed{}, fmt.Errorf("read Envoy's /stats: %s: %w", s.Name, err)
		}
		*counter += n
	}
	return out, nil
}
