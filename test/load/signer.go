package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// signer is a client of the server's CA that asks for one certificate at a time.
type signer struct {
	*connection
	last uint32 // stream ID, an odd number
}

// dialSigner connects; the connection ends with ctx.
func dialSigner(ctx context.Context, addr string, config *tls.Config) (*signer, error) {
	config = config.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c, err := newConnection(ctx, conn, 0)
	if err != nil {
		return nil, err
	}
	return &signer{connection: c, last: 1}, c.out.Flush()
}

// write writes a request to the buffer.
func (s *signer) write(r signing) error {
	var more []hpack.HeaderField
	for name, values := range r.headers {
		more = append(more, hpack.HeaderField{Name: name, Value: values[0]})
	}
	s.last += 2
	return errors.Join(
		s.call(s.last, "https", signMethod, more...),
		s.framer.WriteData(s.last, true, append(prefix(len(r.csr)), r.csr...)))
}

// ask returns the encoded response.
func (s *signer) ask(r signing) ([]byte, error) {
	for s.credit < prefixBytes+len(r.csr) {
		if _, err := s.next(); err != nil {
			return nil, err
		}
	}
	s.credit -= prefixBytes + len(r.csr)
	if err := errors.Join(s.write(r), s.out.Flush()); err != nil {
		return nil, err
	}
	var response []byte
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
			response = append(response, f.Data()...)
		case *http2.RSTStreamFrame:
			return nil, fmt.Errorf("the server resets the stream: %v", f.ErrCode)
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				continue
			}
			for _, h := range f.RegularFields() {
				if h.Name == "grpc-status" && h.Value == "0" && len(response) >= prefixBytes {
					return response[prefixBytes:], nil
				}
			}
			return nil, fmt.Errorf("the server answers %v", f.Fields)
		}
	}
}
