package certs

import (
	"encoding/asn1"
	"slices"
	"time"
)

// der writes DER from the end to the start: what an element holds is written
// before its header, so its length is known then.
type der struct {
	buf []byte
	n   int // so many bytes are written, the last of buf
}

func newDER(size int) *der { return &der{buf: make([]byte, size)} }

func (d *der) bytes() []byte { return d.buf[len(d.buf)-d.n:] }

// put writes b before what is there.
func put[T []byte | string](d *der, b T) {
	if room := len(d.buf) - d.n; room < len(b) {
		d.buf = slices.Concat(make([]byte, len(d.buf)+len(b)), d.bytes())
	}
	d.n += len(b)
	copy(d.bytes(), b)
}

// Tags that package asn1 has no names for.
const (
	tagSequence = asn1.TagSequence | 0x20 // constructed
	tagVersion  = 0xa0                    // [0] EXPLICIT, of a certificate
	tagExtended = 0xa3                    // [3] EXPLICIT: its extensions
	tagURI      = 0x86                    // [6] IMPLICIT, of a name
)

// wrap makes an element of all that was written since there were so many bytes.
func (d *der) wrap(tag byte, since int) {
	switch n := d.n - since; {
	case n < 1<<7:
		put(d, []byte{tag, byte(n)})
	case n < 1<<8:
		put(d, []byte{tag, 0x81, byte(n)})
	default: // as much as a certificate has
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

// moment writes a time as RFC 5280 wants it: with two digits of the year until
// 2049.
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
