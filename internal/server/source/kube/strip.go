package kube

import (
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/server/source"
)

// fields lists the fields of a message to keep, by number; nil keeps a whole field. All
// other fields, which are most of an object, are never decoded.
type fields map[protowire.Number]fields

// readAnnotations keeps only the annotations that source.Converter reads: some tools
// write hundreds of kilobytes of others.
var readAnnotations = fields{annotation: nil}

// annotation marks readAnnotations. It is not a valid field number.
const annotation protowire.Number = 0

var errMalformed = errors.New("malformed protobuf")

// lengthSize is the number of bytes reserved for the length of a kept message, which is
// known only after its content is written.
const lengthSize = 4

// strip appends the kept fields of the message to dst.
func (f fields) strip(dst, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, errMalformed
		}
		size := protowire.ConsumeFieldValue(number, typ, message[n:])
		if size < 0 {
			return nil, errMalformed
		}
		field := message[:n+size]
		value := message[n : n+size]
		message = message[n+size:]
		inner, kept := f[number]
		_, annotations := inner[annotation]
		switch {
		case !kept, annotations && !isRead(value):
			continue
		case inner == nil, annotations:
			dst = append(dst, field...)
			continue
		case typ != protowire.BytesType:
			return nil, errMalformed
		}
		content, _ := protowire.ConsumeBytes(value)
		dst = protowire.AppendTag(dst, number, typ)
		start := len(dst)
		dst = append(dst, make([]byte, lengthSize)...)
		var err error
		if dst, err = inner.strip(dst, content); err != nil {
			return nil, err
		}
		length := len(dst) - start - lengthSize
		if length >= 1<<(7*lengthSize) {
			return nil, errMalformed
		}
		putLength(dst[start:], length)
	}
	return dst, nil
}

// isRead reports whether the value is an entry of annotations that is kept.
func isRead(value []byte) bool {
	entry, _ := protowire.ConsumeBytes(value)
	key, _ := part(entry, 1)
	return source.ReadsAnnotation(string(key))
}

// putLength writes a length as a varint of lengthSize bytes.
func putLength(b []byte, length int) {
	for i := range lengthSize {
		b[i] = byte(length>>(7*i))&0x7f | 0x80
	}
	b[lengthSize-1] &= 0x7f
}

// openEnvelope returns the object in an envelope, and checks its version and kind.
func openEnvelope(b []byte, version, kind string) ([]byte, error) {
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return nil, errors.New("is not an object in protobuf")
	}
	var head, raw []byte
	for b = b[len(magic):]; len(b) > 0; {
		number, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errMalformed
		}
		size := protowire.ConsumeFieldValue(number, typ, b[n:])
		if size < 0 {
			return nil, errMalformed
		}
		if typ == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(b[n : n+size])
			switch number {
			case envelopeType:
				head = content
			case envelopeRaw:
				raw = content
			}
		}
		b = b[n+size:]
	}
	return raw, checkType(head, version, kind)
}

// magic begins every object in protobuf. A message with these fields follows.
const (
	magic = "k8s\x00"

	envelopeType = 1 // apiVersion and kind
	envelopeRaw  = 2 // the object
)

// bigEndian decodes the length of a frame.
func bigEndian(b []byte) int { return int(binary.BigEndian.Uint32(b)) }
