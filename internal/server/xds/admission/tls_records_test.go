package admission

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func record(payload int) []byte {
	return append([]byte{23, 3, 3, byte(payload >> 8), byte(payload)}, bytes.Repeat([]byte{'x'}, payload)...)
}

// TestRecordReader: The reader returns the bytes that arrived, and no read crosses the
// end of a record.
func TestRecordReader(t *testing.T) {
	t.Parallel()
	var stream []byte
	ends := map[int]bool{}
	for _, payload := range []int{0, 1, 100, 506, 507, 508, 600, 16 << 10, 3, 0, 0, 40, 2000, 65535, 7} {
		stream = append(stream, record(payload)...)
		ends[len(stream)] = true
	}
	stream = append(stream, 23, 3) // the stream ends within a header
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader,
		"halves": iotest.HalfReader, "end with data": iotest.DataErrReader,
	} {
		for _, size := range []int{1, 5, 517, 1 << 20} {
			var r recordReader
			in, p := wrap(bytes.NewReader(stream)), make([]byte, size)
			var out []byte
			for {
				n, err := r.read(in, p)
				for i := len(out) + 1; i < len(out)+n; i++ {
					if ends[i] {
						t.Fatalf("%s, %d: a read goes past the end of a record at %d", name, size, i)
					}
				}
				out = append(out, p[:n]...)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(len(stream), len(out)); diff != "" || !bytes.Equal(stream, out) {
				t.Errorf("%s, %d: something else came out %s", name, size, diff)
			}
		}
	}
}

func TestRecordReaderSmallRecordsInOneRead(t *testing.T) {
	t.Parallel()
	reads := 0
	in := readerFunc(func(p []byte) (int, error) {
		reads++
		return copy(p, record(120)), nil
	})
	var r recordReader
	p := make([]byte, 600)
	for range 3 {
		if n, err := r.read(in, p); n != 125 || err != nil {
			t.Fatal(n, err)
		}
	}
	if reads != 3 {
		t.Errorf("%d reads for 3 records", reads)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
