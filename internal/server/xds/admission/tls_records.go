package admission

import (
	"encoding/binary"
	"io"
)

// recordReader returns at most one TLS record at a time. crypto/tls keeps a connection's
// buffer at its largest size, and doubles it repeatedly if the next record starts behind
// the one that it reads. Small records are read ahead, so they take no more reads.
type recordReader struct {
	ahead    [512]byte
	from, to int // the unread part of ahead
	left     int // unread bytes of the record, header included
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

// header reads ahead until the length of the next record is known. The bytes before the end
// of the connection count as a record, too.
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
			return nil // the next read returns the error again
		}
	}
	r.left = recordHeader + int(binary.BigEndian.Uint16(r.ahead[3:]))
	return nil
}
