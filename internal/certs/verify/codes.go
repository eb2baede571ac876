package verify

import (
	"fmt"
	"strings"
	"sync"
)

// Code names a kind of finding. Codes are stable: scripts may rely on them.
type Code string

// The codes. docs/certs.md explains each.
const (
	Incomplete      Code = "incomplete"
	NoPEM           Code = "no-pem"
	Unreadable      Code = "unreadable"
	DamagedPEM      Code = "damaged-pem"
	UnknownBlock    Code = "unknown-block"
	TrustedBlock    Code = "trusted-certificate"
	Malformed       Code = "malformed"
	TrailingText    Code = "trailing-text"
	TooMany         Code = "too-many"
	Misplaced       Code = "misplaced"
	Duplicate       Code = "duplicate"
	EncryptedKey    Code = "encrypted-key"
	ExposedKey      Code = "exposed-key"
	OpenDirectory   Code = "open-directory"
	KeyMismatch     Code = "key-mismatch"
	WeakKey         Code = "weak-key"
	WeakSignature   Code = "weak-signature"
	Expired         Code = "expired"
	NotYetValid     Code = "not-yet-valid"
	ExpiresSoon     Code = "expires-soon"
	WrongOrder      Code = "wrong-order"
	Unrelated       Code = "unrelated"
	RootNotInBundle Code = "root-not-in-bundle"
	NoPathToRoot    Code = "no-path-to-root"
	OtherRoot       Code = "other-root"
	NotSelfSigned   Code = "not-self-signed"
	OutlivesSigner  Code = "outlives-signer"
	NotACA          Code = "not-a-ca"
	NoPathLength    Code = "no-path-length"
	PathLength      Code = "path-length"
	KeyUsage        Code = "key-usage"
	ExtKeyUsage     Code = "ext-key-usage"
	CriticalExt     Code = "critical-extension"
	LeafIsCA        Code = "leaf-is-ca"
	NoSAN           Code = "no-san"
	ManyURIs        Code = "many-uris"
	BadSPIFFEID     Code = "bad-spiffe-id"
	TrustDomain     Code = "wrong-trust-domain"
	NameConstraint  Code = "name-constraint"
	CRLMalformed    Code = "crl-malformed"
	CRLWrongIssuer  Code = "crl-wrong-issuer"
	CRLUnknown      Code = "crl-unknown-issuer"
	CRLStale        Code = "crl-stale"
	CRLMissing      Code = "crl-missing"
	CRLSuperseded   Code = "crl-superseded"
	Revoked         Code = "revoked"
	Rejected        Code = "rejected"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	// Error: peers refuse a valid certificate, accept a revoked one, or a key is
	// exposed.
	Error Severity = "error"
	// Warning: it works today.
	Warning Severity = "warning"
)

// Finding is one fault.
type Finding struct {
	Severity Severity `json:"severity"`
	Code     Code     `json:"code"`
	// Place is the file or the key of a Secret, with the line of the PEM block, such
	// as certs/ca-cert.pem:1.
	Place string `json:"place"`
	// Subject and Fingerprint, the first 8 bytes of the SHA-256, identify the
	// certificate, if the finding is about one.
	Subject     string `json:"subject,omitzero"`
	Fingerprint string `json:"fingerprint,omitzero"`
	Reason      string `json:"reason"`
	Fix         string `json:"fix"`
}

// kind has the common fields of all findings of a code.
type kind struct {
	severity Severity
	fix      string
}

// kinds has the severity and the fix of each code.
var kinds = sync.OnceValue(func() map[Code]kind {
	return map[Code]kind{
		Incomplete:      {Error, "add the missing file; meshctl certs intermediate-ca writes all of them"},
		NoPEM:           {Error, "write the file as PEM; openssl x509 -inform der converts a certificate"},
		Unreadable:      {Error, "make the file readable, or take it away"},
		DamagedPEM:      {Error, "copy the block again, from -----BEGIN to -----END, each on a line of its own"},
		UnknownBlock:    {Error, "take the block out of the file"},
		TrustedBlock:    {Error, "convert it with openssl x509 -in FILE -out FILE"},
		Malformed:       {Error, "get the file again from its source"},
		TrailingText:    {Warning, "take the text behind the last END out of the file"},
		TooMany:         {Error, "keep only what the mesh needs in the file"},
		Misplaced:       {Error, "move it to the file that is for it"},
		Duplicate:       {Warning, "keep one of the two"},
		EncryptedKey:    {Error, "decrypt it with openssl pkey -in FILE -out FILE, in a file of mode 0600"},
		ExposedKey:      {Error, "run chmod 600 on the file, and replace the key if others may have read it"},
		OpenDirectory:   {Warning, "run chmod go-w on the directory"},
		KeyMismatch:     {Error, "put back the key that the certificate was made with, or make both again"},
		WeakKey:         {Error, "make a new key: ECDSA P-256, or RSA of 2048 to 4096 bits"},
		WeakSignature:   {Error, "have the certificate signed again, with ECDSA or RSA and SHA-256 or better"},
		Expired:         {Error, "renew it"},
		NotYetValid:     {Error, "set the clock right, or use it later"},
		ExpiresSoon:     {Warning, "renew it"},
		WrongOrder:      {Error, "order the file: the certificate first, then each one that signed the one before"},
		Unrelated:       {Warning, "take it out of the file"},
		RootNotInBundle: {Error, "add this root to the root certificates, or use the chain of a root that is there"},
		NoPathToRoot:    {Error, "add what signed it to the chain, or its root to the root certificates"},
		OtherRoot:       {Error, "make the CAs of all clusters below one root, or add the roots of each to the root certificates of the others"},
		NotSelfSigned:   {Warning, "trust the root above it, or make it a root of its own"},
		OutlivesSigner:  {Warning, "make it again with an end that is not behind that of its signer"},
		NotACA:          {Error, "use a certificate with basicConstraints CA:TRUE"},
		NoPathLength:    {Warning, "make it again with pathlen:0, so that it can sign workloads only"},
		PathLength:      {Error, "sign with a CA that has the right to sign CAs, or raise its pathlen"},
		KeyUsage:        {Error, "make it again: a CA with keyCertSign, a leaf with digitalSignature"},
		ExtKeyUsage:     {Error, "make it again with serverAuth and clientAuth, or, a CA, without extended key usages"},
		CriticalExt:     {Error, "make it again without the extension, or with the extension not critical"},
		LeafIsCA:        {Error, "make it again with CA:FALSE and without keyCertSign and cRLSign"},
		NoSAN:           {Error, "make it again with a SPIFFE id or a DNS name; the subject does not count"},
		ManyURIs:        {Error, "make it again with exactly one URI, its SPIFFE id"},
		BadSPIFFEID:     {Error, "make it again with a SPIFFE id such as spiffe://cluster.local/ns/default/sa/name"},
		TrustDomain:     {Error, "make it again for the mesh's trust domain, or give the right --trust-domain"},
		NameConstraint:  {Error, "sign it with a CA whose name constraints permit the name"},
		CRLMalformed:    {Error, "get the revocation list again from its CA, or take the file away if there is none"},
		CRLWrongIssuer:  {Error, "get the revocation list again from its CA, or take it out if it is of an earlier CA of that name, with: meshctl certs crl DIR --drop-unknown"},
		CRLUnknown:      {Warning, "keep it if it is of another cluster's CA; replace it if it was meant for the CA that has none"},
		CRLStale:        {Error, "get the current revocation list from its CA, or take it out if the CA is gone; meshctl certs crl makes the next ones"},
		CRLMissing:      {Error, "add the revocation list of each CA, or use none; meshctl certs crl brings them together"},
		CRLSuperseded:   {Error, "bring the newest list of each CA to every cluster; meshctl certs crl does so"},
		Revoked:         {Error, "replace it by a new certificate"},
		Rejected:        {Error, "make the certificates again"},
	}
})

// Failure is an error with findings of severity Error.
type Failure struct{ Findings []Finding }

// Error describes the first finding and lists the codes of others.
func (f *Failure) Error() string {
	first := f.Findings[0]
	text := fmt.Sprintf("%s: %s: %s", first.Place, first.Code, first.Reason)
	if first.Fix != "" {
		text += "; " + first.Fix
	}
	if n := len(f.Findings) - 1; n > 0 {
		var codes []string
		for _, finding := range f.Findings[1:min(len(f.Findings), 6)] {
			codes = append(codes, string(finding.Code))
		}
		text += fmt.Sprintf(" (and %d more: %s)", n, strings.Join(codes, ", "))
	}
	return text
}

// Refuse returns a *Failure with the findings of severity Error, or nil if there are
// none.
func Refuse(findings []Finding) error {
	var errs []Finding
	for _, f := range findings {
		if f.Severity == Error {
			errs = append(errs, f)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &Failure{errs}
}
