package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/test/policymodel"
)

var policyChanges = flag.Int("policy-changes", 200, "how many changes TestRandomPolicyChanges makes")

// lostEach is the number of changes of which the proxy loses its connection during one.
const lostEach = 20

// protectedValues are values that the requests of the matrix have.
var protectedValues = policymodel.Values{
	Principals: []string{"cluster.local/ns/apps/sa/client", "*/ns/legacy/*", "cluster.local/ns/legacy/sa/batch", "*", "cluster.local/*"},
	Namespaces: []string{"apps", "apps*", "*", "*acy"}, ServiceAccounts: []string{"apps/client", "batch", "legacy/batch"},
	TrustDomains: []string{"old.example.com", "cluster.local", "*"},
	Sources:      []string{"127.0.0.0/8", "127.0.0.1", "10.0.0.0/8"}, Remotes: []string{"203.0.113.0/24", "127.0.0.1"}, Destinations: []string{"127.3.0.1", "10.0.0.0/8"},
	Tokens: []string{"https://issuer.example.com/a/alice", "*", "https://issuer.example.com/*", "*/bob"},
	Hosts:  []string{"shop.example.com", "*.example.org", "Shop.*", "*"}, Methods: []string{"GET", "P*", "PUT", "*"},
	Paths: []string{"/a", "/b/*", "*.css", "/users/{*}/cart", "/files/{**}", "*"}, Ports: []string{"5000", "5001"},
	Header: "x-team", HeaderValues: []string{"red", "blue*", "*ish", "*"}, Claim: "realm][roles", ClaimValues: []string{"admin", "user", "shop", "b*"},
}

// randomPolicies makes random policies as YAML.
type randomPolicies struct{ policymodel.Random }

func newRandomPolicies(seed uint64) randomPolicies {
	return randomPolicies{policymodel.Random{Rand: rand.New(rand.NewPCG(seed, 18)), Values: protectedValues}}
}

// spec returns the YAML of a random policy. Nobody can call the provider of the action CUSTOM.
func (r randomPolicies) spec(t *testing.T) string {
	t.Helper()
	actions := []securityv1beta1.AuthorizationPolicy_Action{
		securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_DENY,
		securityv1beta1.AuthorizationPolicy_DENY, securityv1beta1.AuthorizationPolicy_AUDIT, securityv1beta1.AuthorizationPolicy_CUSTOM,
	}
	spec := r.Spec(actions[r.IntN(len(actions))])
	if spec.GetAction() == securityv1beta1.AuthorizationPolicy_CUSTOM {
		spec.ActionDetail = &securityv1beta1.AuthorizationPolicy_Provider{Provider: &securityv1beta1.AuthorizationPolicy_ExtensionProvider{Name: "none"}}
	}
	return textOf(t, spec)
}

func textOf(t *testing.T, spec *securityv1beta1.AuthorizationPolicy) string {
	t.Helper()
	text, err := protojson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// callerRequest is a request of the matrix by a caller.
type callerRequest struct {
	caller string
	matrixRequest
}

func (c callerRequest) allowed(p *protected, policies []policymodel.Policy) bool {
	return policymodel.Allowed(policies, meshDomains, c.model(p, c.caller, protectedClaims(p)))
}

// callerRequests returns all requests of the matrix.
func callerRequests(p *protected) []callerRequest {
	var out []callerRequest
	for _, caller := range slices.Sorted(maps.Keys(p.callers)) {
		for _, r := range matrixRequests {
			out = append(out, callerRequest{caller, r})
		}
	}
	return out
}

// TestRandomPolicies: for random policies, a real Envoy permits what the model permits. One DENY
// policy more permits nothing more, and neither does one ALLOW rule less.
func TestRandomPolicies(t *testing.T) {
	p := startProtected(t)
	token := protectedToken(t, p)
	all := callerRequests(p)
	allowed, refused := 0, 0
	for seed := range uint64(100) {
		r := newRandomPolicies(seed)
		var specs []string
		for range 1 + r.IntN(4) {
			specs = append(specs, r.spec(t))
		}
		some := make([]callerRequest, 12)
		for i := range some {
			some[i] = all[r.IntN(len(all))]
		}
		permits := func(specs []string) []bool {
			t.Helper()
			p.apply(t, specs...)
			policies := parsePolicies(t, specs)
			got := make([]bool, len(some))
			eventually(t, fmt.Sprintf("Envoy permits what the model permits, seed %d", seed), func() error {
				for i, a := range some {
					want := a.allowed(p, policies)
					if got[i] = a.send(t, p, a.caller, token); got[i] != want {
						return fmt.Errorf("caller %q, %+v: %t, want %t, of\n%s", a.caller, a.matrixRequest, got[i], want, strings.Join(specs, "\n"))
					}
				}
				return nil
			})
			return got
		}
		now := permits(specs)
		withDeny := permits(append(slices.Clip(specs), textOf(t, r.Spec(securityv1beta1.AuthorizationPolicy_DENY))))
		withLess := permits(withoutRule(t, specs))
		for i, a := range some {
			switch {
			case now[i]:
				allowed++
			case withDeny[i] || withLess[i]:
				t.Errorf("seed %d: caller %q, %+v is permitted with a DENY policy more (%t) or an ALLOW rule less (%t)", seed, a.caller, a.matrixRequest, withDeny[i], withLess[i])
			default:
				refused++
			}
		}
	}
	if allowed < 100 || refused < 100 {
		t.Errorf("%d requests are permitted, %d refused", allowed, refused)
	}
}

// withoutRule returns the policies without the first rule of the first ALLOW policy that has one.
func withoutRule(t *testing.T, specs []string) []string {
	t.Helper()
	out := slices.Clone(specs)
	for i, p := range parsePolicies(t, specs) {
		if p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW && len(p.Spec.GetRules()) > 0 {
			p.Spec.Rules = p.Spec.Rules[1:]
			out[i] = textOf(t, p.Spec)
			break
		}
	}
	return out
}

// inForceOnce returns an error while a policy is in two filters of the active listeners. Draining
// chains of filters keep theirs.
func inForceOnce(t *testing.T, policies map[string]string) error {
	t.Helper()
	listeners := adminGet(t, admin, "/config_dump?resource=dynamic_listeners")
	var dump struct {
		Configs []struct {
			Filter json.RawMessage `json:"ecds_filter"`
		}
	}
	if err := json.Unmarshal([]byte(adminGet(t, admin, "/config_dump?resource=ecds_filters")), &dump); err != nil {
		return err
	}
	times := make(map[string]int)
	for _, c := range dump.Configs {
		var filter struct{ Name string }
		if err := json.Unmarshal(c.Filter, &filter); err != nil {
			return err
		}
		for name := range policies {
			if strings.Contains(listeners, `"`+filter.Name+`"`) && strings.Contains(string(c.Filter), "policy["+name+"]") {
				if times[name]++; times[name] > 1 {
					return fmt.Errorf("%s is in two filters", name)
				}
			}
		}
	}
	return nil
}

// TestRandomPolicyChanges changes policies while requests are served. Each request is answered as
// the policies before or after a change want that happens meanwhile. During some changes, the proxy
// loses its connection to the control plane.
func TestRandomPolicyChanges(t *testing.T) {
	p := startProtected(t)
	token := protectedToken(t, p)
	all := callerRequests(p)
	r := newRandomPolicies(1)
	// states holds the policies after each change, written the number of the last one that
	// Envoy may have, and taken the number of the last one that it certainly has.
	states := make([][]policymodel.Policy, *policyChanges+1)
	var written, taken atomic.Int64
	var traffic sync.WaitGroup
	defer traffic.Wait()
	done := make(chan struct{})
	defer close(done)
	var permitted, refused atomic.Int64
	for worker := range 2 {
		choice := rand.New(rand.NewPCG(uint64(worker), 18))
		traffic.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				r := all[choice.IntN(len(all))]
				from := taken.Load()
				code := r.status(t, p, r.caller, token)
				to := written.Load()
				switch code {
				case http.StatusOK:
					permitted.Add(1)
				case http.StatusForbidden:
					refused.Add(1)
				case 0:
					continue // the connection was of a listener that changed, or of TCP
				default:
					t.Errorf("status %d", code)
					return
				}
				states := states[from : to+1]
				if !slices.ContainsFunc(states, func(policies []policymodel.Policy) bool { return r.allowed(p, policies) == (code == http.StatusOK) }) {
					t.Errorf("caller %q, %+v: status %d, unlike the policies of changes %d to %d", r.caller, r.matrixRequest, code, from, to)
					for i, policies := range states {
						t.Logf("change %d: %v", int(from)+i, policies)
					}
					return
				}
			}
		})
	}
	specs := map[string]string{}
	began, made := time.Now(), 0
	for i := 1; i <= *policyChanges && !t.Failed(); i++ {
		made = i
		name := fmt.Sprint("p", r.IntN(4))
		if _, exists := specs[name]; exists && r.IntN(5) == 0 {
			delete(specs, name)
		} else {
			specs[name] = r.spec(t)
		}
		states[i] = parsePolicies(t, slices.Collect(maps.Values(specs)))
		written.Store(int64(i))
		if i%lostEach == 0 {
			p.link.cut()
		}
		p.applyNamed(t, specs)
		eventually(t, "no old version of a policy is in force", func() error { return inForceOnce(t, specs) })
		taken.Store(int64(i - 1)) // workers of Envoy may be behind
	}
	t.Logf("%d changes in %s; %d requests were permitted, %d refused", made, time.Since(began).Round(time.Second), permitted.Load(), refused.Load())
	if least := int64(*policyChanges) / 2; permitted.Load() < least || refused.Load() < least {
		t.Errorf("%d requests are permitted, %d refused", permitted.Load(), refused.Load())
	}
}
