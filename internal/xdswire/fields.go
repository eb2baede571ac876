package xdswire

import "google.golang.org/protobuf/encoding/protowire"

// Fields calls each with the fields of an encoded message that have bytes as values. It
// skips other fields.
func Fields(b []byte, each func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := each(number, value); err != nil {
			return err
		}
	}
	return nil
}
