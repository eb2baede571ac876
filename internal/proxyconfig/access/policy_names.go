package access

import (
	"regexp"
	"strconv"
)

// Policy names a rule of an AuthorizationPolicy.
type Policy struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Rule      int    `json:"rule"`
	// Custom is set for a CUSTOM policy, and Provider to its extension provider if the name has it.
	Custom   bool   `json:"custom,omitzero"`
	Provider string `json:"provider,omitzero"`
}

var policyName = regexp.MustCompile(`^(istio-ext-authz-(?:(.*)-)?)?ns\[([^\]]*)\]-policy\[([^\]]*)\]-rule\[(\d+)\]$`)

// ParsePolicy parses the name that Istio's control planes give to a rule in an RBAC filter.
func ParsePolicy(name string) (p Policy, ok bool) {
	m := policyName.FindStringSubmatch(name)
	if m == nil {
		return Policy{}, false
	}
	rule, err := strconv.Atoi(m[5])
	return Policy{Custom: m[1] != "", Provider: m[2], Namespace: m[3], Name: m[4], Rule: rule}, err == nil
}

// String describes a rule.
func (p Policy) String() string {
	return "rule " + strconv.Itoa(p.Rule) + " of AuthorizationPolicy " + p.Name + "." + p.Namespace
}

// RuleTitle describes a rule of an RBAC filter by its policy, if its name has one.
func RuleTitle(name string) string {
	if p, ok := ParsePolicy(name); ok {
		return p.String()
	}
	return "rule " + name
}
