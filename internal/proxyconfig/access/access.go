// Package access finds out whether an Envoy lets a request through, and which rule of which
// policy decides. It reads the filters that Envoy has, and evaluates them as Envoy does:
// the choice of listener and filter chain, the certificate of the client, path
// normalization, and the filters rbac (network and HTTP), jwt_authn and ext_authz.
//
// Conditions have three values. What the package cannot evaluate, such as expressions in
// CEL or addresses that the request does not state, is unknown. A result is "allowed" or
// "denied" only if no unknown condition can change it.
package access

import (
	"fmt"

	"github.com/meshctl/meshctl/internal/proxyconfig"
)

// Config is the configuration of an Envoy, from its dump or from its resources.
type Config proxyconfig.Filters

// Verdict is the decision about a request.
type Verdict string

// The values of Verdict.
const (
	Allowed   Verdict = "allowed"
	Denied    Verdict = "denied"
	Undecided Verdict = "undecided"
)

// Result is the decision about a request and its reasons.
type Result struct {
	Verdict  Verdict `json:"verdict"`
	Listener string  `json:"listener"`
	Chain    string  `json:"chain,omitzero"`
	// TLS reports whether the chain terminates the client's TLS.
	TLS bool `json:"tls"`
	// Path is the path that filters see, if it is not the path of the request.
	Path string `json:"path,omitzero"`
	// By is the name of the step that decides, Rule the name of its rule; empty if none.
	By   string `json:"by,omitzero"`
	Rule string `json:"rule,omitzero"`
	// Status is the HTTP status of a denied request.
	Status int `json:"status,omitzero"`
	// Why states the reason in one sentence.
	Why   string `json:"why"`
	Steps []Step `json:"steps"`
}

// Step is a filter, or another check of Envoy, that looked at the request.
type Step struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitzero"`
	// Shadow reports whether the step only records what it would decide.
	Shadow bool   `json:"shadow,omitzero"`
	Action string `json:"action,omitzero"`
	Rule   string `json:"rule,omitzero"`
	Status int    `json:"status,omitzero"`
	Rules  []Rule `json:"rules,omitzero"`
}

func (t truth) verdict() Verdict { return [...]Verdict{Denied, Undecided, Allowed}[t] }

// Check decides about a request. An error reports that no listener receives it.
func Check(c *Config, r *Request) (*Result, error) {
	l := c.listener(r)
	if l == nil {
		return nil, fmt.Errorf("no listener of the proxy receives connections to port %d", r.Port)
	}
	out := &Result{Listener: l.GetName()}
	request := *r
	request.SNI = lowerASCII(r.SNI) // as Envoy does
	e := &evaluation{config: c, result: out, state: state{Request: &request, filterState: map[string]finding{}}}
	e.connection(l)
	e.conclude()
	return out, nil
}

// evaluation is one run of Check.
type evaluation struct {
	config *Config
	result *Result
	state
}

func (e *evaluation) step(s Step) { e.result.Steps = append(e.result.Steps, s) }

// denied reports whether a step that counts has denied the request.
func (e *evaluation) denied() bool {
	for i := range e.result.Steps {
		if s := &e.result.Steps[i]; s.Verdict == Denied && !s.Shadow {
			return true
		}
	}
	return false
}

// conclude sets the verdict: the first step that denies decides, else the first that is
// undecided, else the last RBAC filter, of which one with a rule goes first.
func (e *evaluation) conclude() {
	var by *Step
	importance := 0
	for i := range e.result.Steps {
		s := &e.result.Steps[i]
		rank := 0
		switch {
		case s.Shadow:
			continue
		case s.Verdict == Denied:
			rank = 8
		case s.Verdict == Undecided:
			rank = 6
		case s.Rule != "":
			rank = 4
		case s.Action != "":
			rank = 2
		}
		if rank > importance || s.Verdict == Allowed && rank == importance {
			by, importance = s, rank
		}
	}
	out := e.result
	out.Verdict, out.Why = Allowed, "no policy applies"
	if by != nil {
		out.Verdict, out.By, out.Rule, out.Why, out.Status = by.Verdict, by.Name, by.Rule, by.Why, by.Status
	}
}
