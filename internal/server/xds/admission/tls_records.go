package admission

import (
	"encoding/binary"
	"io"
)

// recordReader hands out no more than one TLS record at a time. crypto/tls
// keeps the buffer of a connection at the largest size that it ever had, and
// doubles it again and again when the beginning of a next record is behind the
// one it reads. Small records are read ahead, so they take no more reads.
type recordReader struct {
	ahead    [512]byte
	from, to int // what of ahead is not handed out
	left     int // what of the record, its header included, is not handed out
}

const recordHeader = 5

func (r *recordReader) read(conn io.Reader, p []byte) (int, error) {
	if r.from == r.to {
		if r.left > 0 {
			n, err := conn.Read(p[:min(len(p), r.left)])
			r.left -= n
			return n, err
		}
		r.from, r.to = 0, 0
	}
	if r.left == 0 {
		if err := r.header(conn); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.ahead[r.from:min(r.to, r.from+r.left)])
	r.from += n
	r.left -= n
	return n, nil
}

// header reads ahead until the length of the next record is known. What comes
// before the end of the connection is a record, too.
func (r *recordReader) header(conn io.Reader) error {
	r.to = copy(r.ahead[:], r.ahead[r.from:r.to])
	r.from = 0
	for r.to < recordHeader {
		n, err := conn.Read(r.ahead[r.to:])
		if r.to += n; err != nil && r.to < recordHeader {
			r.left = r.to
			if r.to == 0 {
				return err
			}
			return nil // it is told again
		}
	}
	r.left = recordHeader + int(binary.BigEndian.Uint16(r.ahead[3:]))
	return nil
}
