package mesh

import (
	"fmt"
	"strings"
)

// Identity is a workload identity in SPIFFE form:
// spiffe://<trust domain>/ns/<namespace>/sa/<service account>.
type Identity struct {
	TrustDomain    string
	Namespace      string
	ServiceAccount string
}

// String renders the SPIFFE id.
func (i Identity) String() string {
	return "spiffe://" + i.TrustDomain + "/ns/" + i.Namespace + "/sa/" + i.ServiceAccount
}

// maxSPIFFEID is the limit of the SPIFFE specification in bytes.
const maxSPIFFEID = 2048

// ParseIdentity parses a SPIFFE id of a workload. As in the SPIFFE specification, the
// trust domain is lower case, and there are no empty or dot segments, ports, queries,
// fragments or percent escapes.
func ParseIdentity(s string) (Identity, error) {
	if len(s) > maxSPIFFEID {
		return Identity{}, fmt.Errorf("SPIFFE id is longer than %d bytes", maxSPIFFEID)
	}
	rest, ok := strings.CutPrefix(s, "spiffe://")
	if !ok {
		return Identity{}, fmt.Errorf("identity %q does not start with spiffe://", s)
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return Identity{}, fmt.Errorf("identity %q: want spiffe://<trust domain>/ns/<namespace>/sa/<service account>", s)
	}
	id := Identity{TrustDomain: parts[0], Namespace: parts[2], ServiceAccount: parts[4]}
	if !IsTrustDomain(id.TrustDomain) {
		return Identity{}, fmt.Errorf("identity %q: %q is not a SPIFFE trust domain", s, id.TrustDomain)
	}
	if !IsDNSLabel(id.Namespace) {
		return Identity{}, fmt.Errorf("identity %q: namespace %q is not a DNS label", s, id.Namespace)
	}
	if !IsDNSName(id.ServiceAccount) {
		return Identity{}, fmt.Errorf("identity %q: service account %q is not a DNS name", s, id.ServiceAccount)
	}
	return id, nil
}

// IsTrustDomain reports whether s is a trust domain by the SPIFFE
// specification: lower-case letters, digits, '.', '-' and '_', at most 255
// bytes.
func IsTrustDomain(s string) bool {
	if s == "" || len(s) > 255 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
