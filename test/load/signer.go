package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// signer is a client of the server's CA that asks for one certificate at a time,
// on a connection of its own. It speaks HTTP/2 itself, as a client of gRPC takes
// two fifths of the processors that the server needs beside it.
type signer struct {
	conn    net.Conn
	framer  *http2.Framer // writes to out
	out     bytes.Buffer
	block   bytes.Buffer
	headers *hpack.Encoder
	last    uint32 // stream, of an odd number
	credit  int    // bytes of messages that the server takes
	read    uint32 // and not given back to the window
}

func dialSigner(ctx context.Context, addr string, config *tls.Config) (*signer, error) {
	config = config.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	s := &signer{conn: conn, last: 1, credit: 65_535}
	s.headers = hpack.NewEncoder(&s.block)
	s.framer = http2.NewFramer(&s.out, bufio.NewReader(conn))
	s.framer.SetReuseFrames()
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	s.out.WriteString(http2.ClientPreface)
	err = errors.Join(
		s.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: receive}),
		s.framer.WriteWindowUpdate(0, receive),
		s.flush())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

func (s *signer) close() error { return s.conn.Close() }

// flush writes what was framed.
func (s *signer) flush() error {
	_, err := s.out.WriteTo(s.conn)
	return err
}

// ask returns the answer, encoded.
func (s *signer) ask(r signing) ([]byte, error) {
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(r.csr)))
	message = append(message, r.csr...)
	for s.credit < len(message) {
		if _, err := s.next(); err != nil {
			return nil, err
		}
	}
	s.credit -= len(message)
	s.last += 2
	s.block.Reset()
	for _, f := range requestHeaders(r) {
		if err := s.headers.WriteField(f); err != nil {
			return nil, err
		}
	}
	err := errors.Join(
		s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: s.last, BlockFragment: s.block.Bytes(), EndHeaders: true}),
		s.framer.WriteData(s.last, true, message),
		s.flush())
	if err != nil {
		return nil, err
	}
	var answer []byte
	for {
		f, err := s.next()
		if err != nil {
			return nil, err
		}
		if f.Header().StreamID != s.last {
			continue
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			answer = append(answer, f.Data()...)
		case *http2.RSTStreamFrame:
			return nil, fmt.Errorf("the server resets the stream: %v", f.ErrCode)
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				continue
			}
			for _, h := range f.RegularFields() {
				if h.Name == "grpc-status" && h.Value == "0" && len(answer) >= prefixBytes {
					return answer[prefixBytes:], nil
				}
			}
			return nil, fmt.Errorf("the server answers %v", f.Fields)
		}
	}
}

// next reads a frame, which is valid until the next call.
func (s *signer) next() (http2.Frame, error) {
	f, err := s.framer.ReadFrame()
	if err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		if s.read += f.Length; s.read >= receive/2 {
			err = errors.Join(s.framer.WriteWindowUpdate(0, s.read), s.flush())
			s.read = 0
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = errors.Join(s.framer.WriteSettingsAck(), s.flush())
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = errors.Join(s.framer.WritePing(true, f.Data), s.flush())
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			s.credit += int(f.Increment)
		}
	case *http2.GoAwayFrame:
		err = fmt.Errorf("the server says goodbye: %v", f.ErrCode)
	}
	return f, err
}

// requestHeaders are those of a request for a certificate.
func requestHeaders(r signing) []hpack.HeaderField {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: signMethod},
		{Name: ":authority", Value: "istiod.istio-system.svc"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
	for name, values := range r.headers {
		fields = append(fields, hpack.HeaderField{Name: name, Value: values[0]})
	}
	return fields
}
