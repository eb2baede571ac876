package certs

import (
	"crypto/x509"
	"net"
)

// nobody is a domain without e-mail addresses (RFC 2606).
const nobody = "invalid"

// constrain writes the name constraints of the spec, if any, into a root. A kind of name
// without a constraint would be unrestricted, so it writes one for each kind.
func (s CASpec) constrain(template *x509.Certificate) {
	if len(s.PermittedURIDomains)+len(s.PermittedDNSDomains)+len(s.PermittedIPRanges) == 0 {
		return
	}
	template.ExtraExtensions = nil // the constraints of spec.Like
	template.PermittedURIDomains = s.PermittedURIDomains
	template.PermittedDNSDomains = s.PermittedDNSDomains
	template.PermittedEmailAddresses = []string{nobody}
	template.PermittedIPRanges = s.PermittedIPRanges
	if len(s.PermittedIPRanges) == 0 {
		template.ExcludedIPRanges = []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
			{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		}
	}
	template.PermittedDNSDomainsCritical = true // applies to all constraints
}
