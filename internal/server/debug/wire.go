package debug

import "google.golang.org/protobuf/encoding/protowire"

// fields calls each with the fields of an encoded message that are bytes, as
// those of name tables are. Others are left out.
func fields(b []byte, each func(number int, value []byte) error) error {
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
		if err := each(int(number), value); err != nil {
			return err
		}
	}
	return nil
}
