package gate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials"
)

func http2Frame(payload int) []byte {
	return append([]byte{byte(payload >> 16), byte(payload >> 8), byte(payload), 0, 0, 0, 0, 0, 1}, bytes.Repeat([]byte{'x'}, payload)...)
}

// recorder keeps each write, and fails or forwards them.
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

// Each frame goes out in a write of its own, however its parts come.
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
		if !cmp.Equal(frames, out.writes) {
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

// Full frames go out in pairs, or with what follows them; one that nothing follows
// does not wait for long.
func TestFullFramesInPairs(t *testing.T) {
	t.Parallel()
	const full = frameHeader + 16<<10
	out := make(channelWriter, 10)
	for name, tt := range map[string]struct{ frames, writes []int }{
		"two":             {[]int{16 << 10, 16 << 10}, []int{2 * full}},
		"three and less":  {[]int{16 << 10, 16 << 10, 16 << 10, 5}, []int{2 * full, full + 14}},
		"one":             {frames: []int{16 << 10}},
		"less":            {[]int{5, 16<<10 - 1}, []int{14, full - 1}},
		"three":           {frames: []int{16 << 10, 16 << 10, 16 << 10}},
		"three and empty": {[]int{16 << 10, 16 << 10, 16 << 10, 0}, []int{2 * full, full + 9}},
	} {
		w := frameWriter{out: out, wait: time.Minute}
		if tt.writes == nil { // nothing comes after the last
			w.wait = time.Millisecond
		}
		var want, got []byte
		for _, size := range tt.frames {
			f := http2Frame(size)
			want = append(want, f...)
			for _, part := range [][]byte{f[:frameHeader], f[frameHeader:]} {
				if _, err := w.Write(part); err != nil {
					t.Fatal(err)
				}
			}
		}
		var writes []int
		for len(got) < len(want) {
			select {
			case p := <-out:
				got = append(got, p...)
				writes = append(writes, len(p))
			case <-time.After(30 * time.Second):
				t.Fatalf("%s: %d of %d bytes were written", name, len(got), len(want))
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: something else was written", name)
		}
		if tt.writes != nil && !slices.Equal(writes, tt.writes) {
			t.Errorf("%s: writes of %v bytes, want %v", name, writes, tt.writes)
		}
	}
}

// channelWriter hands on what is written.
type channelWriter chan []byte

func (c channelWriter) Write(p []byte) (int, error) {
	c <- bytes.Clone(p)
	return len(p), nil
}

// With TLS a frame is a record, and what a full one has too much goes out with it.
func TestFramesWithTLS(t *testing.T) {
	t.Parallel()
	pages := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer pages.Close()
	none := func() {}
	conns := NewConns(Config{
		Limits: Limits{FirstRequest: time.Minute, Write: time.Minute, AddressConns: 1, PendingConns: 1, IdentityConns: 1},
		Stats:  Stats{Refused: none, Rejected: none, Stalled: none}, Log: slog.New(slog.DiscardHandler), Authenticate: true,
	})
	near, far := net.Pipe()
	out := &recorder{Conn: near, forward: true}
	client := tls.Client(far, &tls.Config{RootCAs: pool(pages.Certificate()), ServerName: "example.com", NextProtos: []string{"h2"}})
	defer func() { _ = client.Close() }()
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
	const record = 5 + 1 + 16 // what TLS 1.3 adds
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
