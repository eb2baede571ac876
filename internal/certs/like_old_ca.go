package certs

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"
)

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
