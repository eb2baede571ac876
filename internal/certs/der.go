package certs

import (
	"encoding/asn1"
	"slices"
	"time"
)

// der writes DER from the end to the start. The content of an element precedes its
// header in time, so its length is known.
type der struct {
	buf []byte
	n   int // bytes written, at the end of buf
}

func newDER(size int) *der { return &der{buf: make([]byte, size)} }

func (d *der) bytes() []byte { return d.buf[len(d.buf)-d.n:] }

// put writes b in front of the existing bytes.
func put[T []byte | string](d *der, b T) {
	if room := len(d.buf) - d.n; room < len(b) {
		d.buf = slices.Concat(make([]byte, len(d.buf)+len(b)), d.bytes())
	}
	d.n += len(b)
	copy(d.bytes(), b)
}

// Tags without a name in package asn1.
const (
	tagSequence = asn1.TagSequence | 0x20 // constructed
	tagVersion  = 0xa0                    // [0] EXPLICIT: version of a certificate
	tagExtended = 0xa3                    // [3] EXPLICIT: extensions of a certificate
	tagURI      = 0x86                    // [6] IMPLICIT: URI of a general name
)

// wrap makes an element of all bytes written since d.n was since.
func (d *der) wrap(tag byte, since int) {
	switch n := d.n - since; {
	case n < 1<<7:
		put(d, []byte{tag, byte(n)})
	case n < 1<<8:
		put(d, []byte{tag, 0x81, byte(n)})
	default: // less than 64 KiB, as in every certificate
		put(d, []byte{tag, 0x82, byte(n >> 8), byte(n)})
	}
}

// integer writes a positive number.
func (d *der) integer(number []byte) {
	since := d.n
	put(d, number)
	if number[0] >= 1<<7 {
		put(d, []byte{0})
	}
	d.wrap(asn1.TagInteger, since)
}

// bitString writes whole bytes as a BIT STRING.
func (d *der) bitString(b []byte) {
	since := d.n
	put(d, b)
	put(d, []byte{0})
	d.wrap(asn1.TagBitString, since)
}

// moment writes a time as RFC 5280 requires: with two digits of the year until 2049.
func (d *der) moment(t time.Time) {
	var room [16]byte
	since := d.n
	if t = t.UTC(); t.Year() < 2050 {
		put(d, t.AppendFormat(room[:0], "060102150405Z"))
		d.wrap(asn1.TagUTCTime, since)
		return
	}
	put(d, t.AppendFormat(room[:0], "20060102150405Z"))
	d.wrap(asn1.TagGeneralizedTime, since)
}
