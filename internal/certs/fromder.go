package certs

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
)

// FromDER gives as PEM what DER holds: certificates, or one request,
// revocation list or private key. It is nil when it holds none of these.
func FromDER(data []byte) []byte {
	if len(data) == 0 || data[0] != tagSequence {
		return nil
	}
	if list, err := x509.ParseCertificates(data); err == nil && len(list) > 0 {
		return EncodeCerts(list...)
	}
	var whole asn1.RawValue // some parsers do not look behind the end
	if rest, err := asn1.Unmarshal(data, &whole); err != nil || len(rest) > 0 {
		return nil
	}
	for _, block := range []*pem.Block{
		{Type: blockCSR, Bytes: data},
		{Type: blockCRL, Bytes: data},
		{Type: "PRIVATE KEY", Bytes: data},
		{Type: "EC PRIVATE KEY", Bytes: data},
		{Type: "RSA PRIVATE KEY", Bytes: data},
	} {
		var err error
		switch block.Type {
		case blockCSR:
			_, err = x509.ParseCertificateRequest(data)
		case blockCRL:
			_, err = x509.ParseRevocationList(data)
		default:
			_, err = parseKeyBlock(block)
		}
		if err == nil {
			return pem.EncodeToMemory(block)
		}
	}
	return nil
}
