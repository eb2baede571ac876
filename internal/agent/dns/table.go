package dns

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// table holds the names of the mesh as the workload sees them. It never changes.
type table struct {
	encoded []byte // the NameTable
	// hosts are addresses by name, in lower case and without the last dot. The names of
	// wildcards begin with "*.".
	hosts map[string]*host
}

// host holds the addresses of a name.
type host struct{ v4, v6 []netip.Addr }

// newTable returns the table of an encoded NameTable, for workloads of the namespace.
// Services of Kubernetes in the domain, such as svc.cluster.local, also have the short names
// that they have in the DNS of Kubernetes.
func newTable(encoded []byte, namespace, domain string) (*table, error) {
	entries, err := xdswire.NameTable(encoded)
	if err != nil {
		return nil, err
	}
	t := &table{encoded: encoded, hosts: make(map[string]*host, 4*len(entries))}
	for name, info := range entries {
		h := &host{}
		for _, text := range info.IPs {
			switch ip, err := netip.ParseAddr(text); {
			case err != nil || ip.Zone() != "": // other addresses of the host still work
			case ip.Unmap().Is4():
				h.v4 = append(h.v4, ip.Unmap())
			default:
				h.v6 = append(h.v6, ip)
			}
		}
		t.hosts[key(name)] = h
	}
	for name, info := range entries {
		full, short := key(name), key(info.Shortname)
		if info.Registry != kubernetes || full != key(short+"."+info.Namespace+"."+domain) {
			continue
		}
		// The names are parts of the full one: they need no memory of their own.
		inNamespace := full[:len(short)+1+len(info.Namespace)]
		service, _, _ := strings.Cut(domain, ".")
		t.alias(inNamespace, full)
		t.alias(full[:len(inNamespace)+1+len(service)], full)
		if strings.EqualFold(info.Namespace, namespace) {
			t.alias(full[:len(short)], full)
		}
	}
	return t, nil
}

// kubernetes is the registry of the services of Kubernetes.
const kubernetes = "Kubernetes"

// key returns the form of a name in a table.
func key(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// alias gives a host another name, unless a host has this name.
func (t *table) alias(name, full string) {
	if _, ok := t.hosts[name]; !ok {
		t.hosts[name] = t.hosts[full]
	}
}

// find returns the host of a name, nil for none. If the name is one of the table with the
// search domain appended, as resolvers try it first, find reports this name as canonical.
func (t *table) find(name, search string) (h *host, canonical string) {
	if h := t.hosts[name]; h != nil {
		return h, ""
	}
	short, expanded := "", false
	if search != "" {
		short, expanded = strings.CutSuffix(name, "."+search)
	}
	if expanded {
		if h := t.hosts[short]; h != nil {
			return h, short
		}
		if h := t.wildcard(short); h != nil {
			return h, short
		}
	}
	return t.wildcard(name), ""
}

// wildcard returns the host of the longest wildcard that matches a name, nil for none.
func (t *table) wildcard(name string) *host {
	for {
		dot := strings.IndexByte(name, '.')
		if dot < 0 {
			return nil
		}
		// The lookup of a concatenation allocates nothing if it is short.
		if h := t.hosts["*"+name[dot:]]; h != nil {
			return h
		}
		name = name[dot+1:]
	}
}

// ServeTable serves the name table as JSON, in the form of Istio's agent.
func (s *Server) ServeTable(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	t := s.table.Load()
	if t == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("{}"))
		return
	}
	entries, err := xdswire.NameTable(t.encoded)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(struct { // a client that is gone needs no answer
		Table map[string]xdswire.NameInfo `json:"table"`
	}{entries})
}
