package access

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Caller is a class of clients.
type Caller struct {
	Name string
	// Identity is the identity of the client's certificate; zero for plaintext.
	Identity mesh.Identity
	// Except, if not nil, makes the caller any workload but these.
	Except []mesh.Identity
}

// Names of the classes of clients that stand for all others.
const (
	OtherIdentities = "other identities"
	Plaintext       = "plaintext"
)

// stranger is a name that no service account has, as it is too long for a label.
var stranger = strings.Repeat("other-", 11) + "identity"

// Callers returns the classes of clients that a matrix distinguishes: each identity, the
// others of each namespace, all others, and plaintext.
func Callers(known []mesh.Identity, trustDomain string) []Caller {
	var out []Caller
	var namespaces []string
	for _, id := range known {
		out = append(out, Caller{Name: id.Namespace + "/" + id.ServiceAccount, Identity: id})
		namespaces = append(namespaces, id.Namespace)
	}
	slices.Sort(namespaces)
	for _, ns := range slices.Compact(namespaces) {
		out = append(out, Caller{Name: ns + "/*", Identity: mesh.Identity{TrustDomain: trustDomain, Namespace: ns, ServiceAccount: stranger}})
	}
	return append(out,
		Caller{Name: OtherIdentities, Identity: mesh.Identity{TrustDomain: trustDomain, Namespace: stranger, ServiceAccount: stranger}, Except: append([]mesh.Identity{}, known...)},
		Caller{Name: Plaintext})
}

// Cell is the decision about all requests of a caller to a port.
type Cell struct {
	Caller string `json:"caller"`
	// Calls is "allow", "deny" or "depends", on parts of the request.
	Calls string `json:"calls"`
	// Rules are the names of the rules that decide, or that may.
	Rules []string `json:"rules,omitempty"`
	Why   string   `json:"why"`
}

// Row returns the decisions about the requests of all callers to a port.
func Row(c *Config, port uint32, callers []Caller) ([]Cell, error) {
	var out []Cell
	for _, caller := range callers {
		r := &Request{Port: port, Open: true}
		if caller.Identity != (mesh.Identity{}) {
			r.TLS, r.ALPN, r.Peer = true, []string{"istio"}, &Peer{URIs: []string{caller.Identity.String()}, Except: caller.Except}
		}
		result, err := Check(c, r)
		if err != nil {
			return nil, err
		}
		calls := map[Verdict]string{Allowed: "allow", Denied: "deny", Undecided: "depends"}[result.Verdict]
		why, _, _ := strings.Cut(result.Why, nearest) // it is about the sample
		out = append(out, Cell{Caller: caller.Name, Calls: calls, Rules: result.deciding(), Why: why})
	}
	return out, nil
}

// deciding returns the names of the rules that decide, or that may.
func (r *Result) deciding() []string {
	if r.Verdict != Undecided {
		if r.Rule == "" {
			return nil
		}
		return []string{r.Rule}
	}
	var out []string
	for _, s := range r.Steps {
		if s.Shadow || s.Verdict != Undecided {
			continue
		}
		for _, rule := range s.Rules {
			if rule.Match != MatchesNot {
				out = append(out, rule.Name)
			}
		}
	}
	return out
}

// Summary drops the callers for whom the decision and its rules are the same as for the
// others of their namespace, and namespaces that are like all others.
func Summary(cells []Cell) []Cell {
	byCaller := map[string]Cell{}
	for _, cell := range cells {
		byCaller[cell.Caller] = cell
	}
	var out []Cell
	for _, cell := range cells {
		namespace, account, isIdentity := strings.Cut(cell.Caller, "/")
		wider := byCaller[namespace+"/*"]
		if account == "*" {
			wider = byCaller[OtherIdentities]
		}
		if !isIdentity || cell.Calls != wider.Calls || !slices.Equal(cell.Rules, wider.Rules) {
			out = append(out, cell)
		}
	}
	return out
}
