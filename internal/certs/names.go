package certs

import (
	"crypto/x509"
	"encoding/asn1"
)

// URIs returns the URIs among a certificate's names, as they are written in
// it: the parsed ones of crypto/x509 may have lost what makes a SPIFFE id
// invalid.
func URIs(cert *x509.Certificate) []string {
	var uris []string
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) { // subjectAltName
			continue
		}
		var names asn1.RawValue
		if _, err := asn1.Unmarshal(ext.Value, &names); err != nil {
			return uris
		}
		const tagURI = 6
		for rest := names.Bytes; len(rest) > 0; {
			var name asn1.RawValue
			var err error
			if rest, err = asn1.Unmarshal(rest, &name); err != nil {
				return uris
			}
			if name.Class == asn1.ClassContextSpecific && name.Tag == tagURI {
				uris = append(uris, string(name.Bytes))
			}
		}
	}
	return uris
}
