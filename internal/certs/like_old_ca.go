package certs

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net"
	"slices"
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

// liken copies properties of spec.Like to the template.
func liken(template *x509.Certificate, spec CASpec) error {
	old := spec.Like
	subject, err := renamed(old.RawSubject, spec.Organization, spec.CommonName)
	if err != nil {
		return err
	}
	if old.KeyUsage != 0 { // zero allows every use
		template.KeyUsage = old.KeyUsage | signs
	}
	template.RawSubject = subject
	template.URIs = old.URIs
	template.ExtKeyUsage, template.UnknownExtKeyUsage = old.ExtKeyUsage, old.UnknownExtKeyUsage
	for _, ext := range old.Extensions {
		if ext.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 30}) { // nameConstraints
			template.ExtraExtensions = append(template.ExtraExtensions, ext)
		}
	}
	return nil
}

// renamed replaces the organization and the common name of a subject in DER, unless
// they are empty.
func renamed(subject []byte, organization, commonName string) ([]byte, error) {
	if organization == "" && commonName == "" {
		return subject, nil
	}
	var name pkix.RDNSequence
	if _, err := asn1.Unmarshal(subject, &name); err != nil {
		return nil, fmt.Errorf("subject of the old CA: %w", err)
	}
	for _, n := range []pkix.AttributeTypeAndValue{
		{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: organization},
		{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: commonName},
	} {
		if n.Value == "" {
			continue
		}
		for i, set := range name {
			name[i] = slices.DeleteFunc(set, func(a pkix.AttributeTypeAndValue) bool { return a.Type.Equal(n.Type) })
		}
		name = slices.DeleteFunc(name, func(set pkix.RelativeDistinguishedNameSET) bool { return len(set) == 0 })
		name = append(name, pkix.RelativeDistinguishedNameSET{n})
	}
	der, err := asn1.Marshal(name)
	if err != nil {
		return nil, fmt.Errorf("subject of the new CA: %w", err)
	}
	return der, nil
}
