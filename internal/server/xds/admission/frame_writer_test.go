package admission

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials"
)

func http2Frame(payload int) []byte {
	return append([]byte{byte(payload >> 16), byte(payload >> 8), byte(payload), 0, 0, 0, 0, 0, 1}, bytes.Repeat([]byte{'x'}, payload)...)
}

// recorder records each write, and fails or forwards it.
type recorder struct {
	net.Conn
	writes  [][]byte
	fail    bool
	forward bool
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.fail {
		return 0, io.ErrClosedPipe
	}
	r.writes = append(r.writes, bytes.Clone(p))
	if r.forward {
		return r.Conn.Write(p)
	}
	return len(p), nil
}

// TestFrameWriter: Each frame is one write, however its parts arrive.
func TestFrameWriter(t *testing.T) {
	t.Parallel()
	var frames [][]byte
	var stream []byte
	for _, payload := range []int{0, 4, 1, 100, 16 << 10, 0, 16<<10 - 1, 40 << 10, 8} {
		f := http2Frame(payload)
		frames = append(frames, f)
		stream = append(stream, f...)
	}
	for _, size := range []int{1, 4, 9, 13, 5000, 1 << 20} {
		out := &recorder{}
		w := frameWriter{out: out}
		if n, err := io.CopyBuffer(struct{ io.Writer }{&w}, struct{ io.Reader }{bytes.NewReader(stream)}, make([]byte, size)); n != int64(len(stream)) || err != nil {
			t.Fatal(n, err)
		}
		if !slices.EqualFunc(frames, out.writes, bytes.Equal) {
			t.Errorf("parts of %d bytes: %d writes for %d frames, or others", size, len(out.writes), len(frames))
		}
		if w.buf != nil {
			t.Errorf("parts of %d bytes: a buffer is left", size)
		}
	}
	w := frameWriter{out: &recorder{fail: true}}
	for _, p := range [][]byte{http2Frame(1), http2Frame(1)[:9], http2Frame(1)[9:]} {
		if _, err := w.Write(p); err != nil {
			return
		}
	}
	t.Error("nobody is told that a write fails")
}

// TestFramesWithTLS: With TLS a frame is one record; the excess of a full frame is in
// the same write.
func TestFramesWithTLS(t *testing.T) {
	t.Parallel()
	pages := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer pages.Close()
	conns := newConns(1, true)
	near, far := net.Pipe()
	out := &recorder{Conn: near, forward: true}
	client := tls.Client(far, &tls.Config{RootCAs: pool(pages.Certificate()), ServerName: "example.com", NextProtos: []string{"h2"}})
	defer func() { _ = far.Close() }() // the client would wait 5 seconds for a reader of its alert
	var got bytes.Buffer
	read := make(chan error, 1)
	sizes := []int{16 << 10, 100, 0, 16<<10 - 1, 16<<10 - 9, 16 << 10}
	var want bytes.Buffer
	for _, size := range sizes {
		want.Write(http2Frame(size))
	}
	go func() {
		_, err := io.CopyN(&got, client, int64(want.Len()))
		read <- err
	}()
	conn, _, err := Credentials(credentials.NewTLS(&tls.Config{
		Certificates: pages.TLS.Certificates, DynamicRecordSizingDisabled: true, SessionTicketsDisabled: true,
	})).Clone().ServerHandshake(conns.admit(out))
	if err != nil {
		t.Fatal(err)
	}
	handshake := len(out.writes)
	for _, size := range sizes {
		f := http2Frame(size)
		for _, part := range [][]byte{f[:frameHeader], f[frameHeader:]} {
			if _, err := conn.Write(part); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-read; err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes arrived, %v, want the %d that were written", got.Len(), err, want.Len())
	}
	const record = 5 + 1 + 16 // added by TLS 1.3
	var records []int
	for _, w := range out.writes[handshake:] {
		records = append(records, len(w)-record)
	}
	if diff := cmp.Diff([]int{9, 16 << 10, 109, 9, 8, 16 << 10, 16 << 10, 9, 16 << 10}, records); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func pool(c *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(c)
	return p
}
