package certs

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"iter"
	"strings"
)

// Limits of Scan.
const (
	// MaxBlocks is the number of PEM blocks that Scan reads.
	MaxBlocks = 5000
	// maxBlock is the size limit of a block in bytes. A revocation list of 100,000
	// entries has about 4 MiB.
	maxBlock = 8 << 20
	// maxKeyBlock is the limit for private keys. An RSA key of 8,192 bits has less
	// than 5 KiB; parsing larger keys takes long.
	maxKeyBlock = 8 << 10
)

// Fault is the kind of fault of a PEM block.
type Fault string

// Faults of blocks.
const (
	FaultDamaged   Fault = "damaged"   // BEGIN, END or base64 are broken
	FaultEncrypted Fault = "encrypted" // a private key under a passphrase
	FaultTrusted   Fault = "trusted"   // openssl's TRUSTED CERTIFICATE
	FaultUnknown   Fault = "unknown"   // another type of block
	FaultMalformed Fault = "malformed" // the content is not what the type says
	FaultTrailing  Fault = "trailing"  // no block, but text behind the last one
	FaultTooMany   Fault = "too many"  // Scan stopped here
)

// Block is one PEM block. It has either content or a Fault.
type Block struct {
	Line int    // of BEGIN in the text, from 1
	Type string // as BEGIN names it

	Cert *x509.Certificate
	CSR  *x509.CertificateRequest
	CRL  *x509.RevocationList
	// KeyOf is the public half of a private key. The private half is not kept.
	KeyOf crypto.PublicKey

	Fault Fault
	Err   error // the reason of Fault, without any data of the block
}

// Scan parses all PEM blocks of a text and reports the faults of each. It ignores
// elliptic curve parameters, and text before and between blocks, as openssl -text
// writes it. Unlike encoding/pem, it takes time proportional to the text.
func Scan(data []byte) []Block {
	var blocks []Block
	for b, raw := range splitPEM(data) {
		switch {
		case len(blocks) == MaxBlocks:
			b = Block{Line: b.Line, Fault: FaultTooMany, Err: fmt.Errorf("more than %d PEM blocks", MaxBlocks)}
			return append(blocks, b)
		case raw == nil:
			blocks = append(blocks, b)
		case raw.Type != blockECParameters:
			blocks = append(blocks, b.with(raw))
		}
	}
	return blocks
}

// with returns the block with the parsed content.
func (b Block) with(raw *pem.Block) Block {
	b.Type = raw.Type
	der := raw.Bytes
	if len(der) > maxBlock {
		return b.fail(FaultMalformed, fmt.Errorf("its content has %d bytes, more than the %d allowed", len(der), maxBlock))
	}
	var err error
	switch {
	case b.Type == blockCert:
		b.Cert, err = x509.ParseCertificate(der)
	case b.Type == blockCSR, b.Type == "NEW CERTIFICATE REQUEST":
		b.CSR, err = x509.ParseCertificateRequest(der)
	case b.Type == blockCRL:
		b.CRL, err = x509.ParseRevocationList(der)
	case b.Type == blockTrusted:
		return b.fail(FaultTrusted, errTrusted)
	case b.Type == "OPENSSH PRIVATE KEY":
		return b.fail(FaultUnknown, errors.New("the private key is one of SSH, which no proxy reads"))
	case isEncrypted(raw):
		return b.fail(FaultEncrypted, errEncrypted)
	case isKey(b.Type):
		if len(der) > maxKeyBlock {
			return b.fail(FaultMalformed, fmt.Errorf("the private key has %d bytes, more than the %d allowed", len(der), maxKeyBlock))
		}
		var key crypto.Signer
		if key, err = parseKeyBlock(raw); err == nil {
			b.KeyOf = key.Public()
		}
	case b.Type == "PKCS7":
		return b.fail(FaultUnknown, errors.New("PKCS7 is a form of certificates that no proxy reads; convert it with openssl pkcs7 -print_certs"))
	default:
		return b.fail(FaultUnknown, fmt.Errorf("PEM block %q is of an unknown type", b.Type))
	}
	if err != nil {
		return b.fail(FaultMalformed, err)
	}
	return b
}

func (b Block) fail(f Fault, err error) Block {
	b.Fault, b.Err = f, err
	return b
}

// IsKey reports whether the block is a private key, readable or not.
func (b Block) IsKey() bool { return isKey(b.Type) || b.Fault == FaultEncrypted }

func isKey(blockType string) bool { return strings.HasSuffix(blockType, "PRIVATE KEY") }

const (
	blockCRL          = "X509 CRL"
	blockTrusted      = "TRUSTED CERTIFICATE"
	blockECParameters = "EC PARAMETERS"
)

var (
	errTrusted   = errors.New("TRUSTED CERTIFICATE is a form of openssl alone")
	errEncrypted = errors.New("the private key is encrypted; decrypt it with openssl pkey")
)

var (
	pemBegin = []byte("-----BEGIN ")
	pemEnd   = []byte("-----END ")
)

// splitPEM splits a text into blocks, each from a BEGIN to the next END, and their lines
// or faults. The content is nil if there is a fault. It reads every line once, so that
// many BEGINs cost no more than other text.
func splitPEM(data []byte) iter.Seq2[Block, *pem.Block] {
	return func(yield func(Block, *pem.Block) bool) {
		var (
			start, startLine = -1, 0 // of the open block
			pos, line        = 0, 1
			stray, damaged   = 0, false // stray: line of text after the last block
		)
		broken := func(line int, format string, args ...any) bool {
			damaged = true
			return yield(Block{Line: line, Fault: FaultDamaged, Err: fmt.Errorf(format, args...)}, nil)
		}
		if IsUTF16(data) {
			broken(1, "the text is UTF-16, which no program reads as PEM: convert it, as with iconv -f UTF-16 -t UTF-8")
			return
		}
		for ; pos < len(data); line++ {
			end := len(data)
			if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
				end = pos + i + 1
			}
			text := data[pos:end]
			switch {
			case bytes.HasPrefix(text, pemBegin):
				if start >= 0 && !broken(startLine, "the PEM block has no END before the next BEGIN in line %d", line) {
					return
				}
				start, startLine, stray = pos, line, 0
			case start >= 0 && bytes.HasPrefix(text, pemEnd):
				block, _ := pem.Decode(data[start:end])
				switch {
				case block != nil:
					if !yield(Block{Line: startLine}, block) {
						return
					}
				case bytes.Contains(text, pemBegin):
					if !broken(startLine, "the next BEGIN stands in the line of END; put a line break between them") {
						return
					}
				case !broken(startLine, "the PEM block is damaged"):
					return
				}
				start, stray = -1, 0
			case start < 0 && pos == 0 && bytes.HasPrefix(data, []byte("\ufeff")) && bytes.Contains(text, pemBegin):
				if !broken(line, "a byte order mark stands before BEGIN, so most programs do not find it: save the file as UTF-8 without the mark") {
					return
				}
			case start < 0 && bytes.Contains(text, pemBegin):
				if !broken(line, "BEGIN does not stand at the start of its line") {
					return
				}
			case start < 0 && stray == 0 && len(bytes.TrimSpace(text)) > 0 && !bytes.HasPrefix(text, pemEnd):
				stray = line
			}
			pos = end
		}
		switch {
		case start >= 0:
			broken(startLine, "the PEM block has no END")
		case stray > 0 && !damaged && bytes.Contains(data, pemBegin):
			yield(Block{Line: stray, Fault: FaultTrailing, Err: errors.New("there is text behind the last PEM block")}, nil)
		}
	}
}

// IsUTF16 reports whether a text holds PEM in UTF-16.
func IsUTF16(data []byte) bool {
	const begin = "-\x00-\x00-\x00-\x00-\x00B\x00E\x00G\x00I\x00N" // of both orders of bytes
	return bytes.Contains(data, []byte(begin)) && !bytes.Contains(data, pemBegin)
}

// decodePEM returns all PEM blocks of data. A damaged block is an error, while
// encoding/pem would skip it.
func decodePEM(data []byte) ([]*pem.Block, error) {
	var blocks []*pem.Block
	damaged, first := 0, error(nil)
	for b, raw := range splitPEM(data) {
		switch {
		case raw != nil:
			blocks = append(blocks, raw)
		case b.Fault == FaultDamaged:
			damaged, first = damaged+1, cmp.Or(first, b.Err)
		}
	}
	switch {
	case damaged > 0:
		return nil, fmt.Errorf("%d of %d PEM blocks are damaged: %w", damaged, damaged+len(blocks), first)
	case len(blocks) == 0:
		return nil, errors.New("holds no PEM block")
	}
	return blocks, nil
}

// FromDER converts DER to PEM: certificates, or one request, revocation list or
// private key. It returns nil for anything else.
func FromDER(data []byte) []byte {
	const sequence = asn1.TagSequence | 0x20 // constructed
	if len(data) == 0 || data[0] != sequence {
		return nil
	}
	if list, err := x509.ParseCertificates(data); err == nil && len(list) > 0 {
		return EncodeCerts(list...)
	}
	var whole asn1.RawValue // some parsers ignore trailing data
	if rest, err := asn1.Unmarshal(data, &whole); err != nil || len(rest) > 0 {
		return nil
	}
	for _, blockType := range []string{blockCSR, blockCRL, "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"} {
		block := &pem.Block{Type: blockType, Bytes: data}
		if (Block{}).with(block).Err == nil {
			return pem.EncodeToMemory(block)
		}
	}
	return nil
}
