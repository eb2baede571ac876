package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"
)

// Parameters of a flood.
const (
	floodRate  = 10_000 // requests a second
	floodConns = 4
	calmRate   = 200 // requests a second of all other identities together
)

// flood measures how long other identities wait for certificates while one identity asks
// floodRate times a second. Rounds without and with the flood alternate.
func (b *benchmark) flood(ctx context.Context, m *meshctl, clients []*signer, requests []signing, config *tls.Config) error {
	var without, with, sent, cpu []float64
	for range b.rounds {
		before, err := m.cpu()
		if err != nil {
			return err
		}
		took, err := sign(ctx, clients, requests[1:], calmRate)
		if err != nil {
			return err
		}
		without = append(without, percentile(took, 99))
		between, err := m.cpu()
		if err != nil {
			return err
		}
		f, err := startFlood(ctx, m.secure, config, requests[0])
		if err != nil {
			return err
		}
		start := time.Now()
		took, err = sign(ctx, clients, requests[1:], calmRate)
		answered, wall := float64(f.answered.Load()), time.Since(start)
		if err = errors.Join(err, f.stop()); err != nil {
			return err
		}
		after, err := m.cpu()
		if err != nil {
			return err
		}
		with = append(with, percentile(took, 99))
		sent = append(sent, answered/wall.Seconds())
		cpu = append(cpu, (after-between-(between-before))/answered)
	}
	counted, err := m.counters()
	if err != nil {
		return err
	}
	if counted["meshctl_ca_limited_requests_total"] == 0 {
		return errors.New("no request of the flood was refused")
	}
	what := fmt.Sprintf("one identity asks %d times a second: ", floodRate)
	b.report.add(what+"answers to it", median(sent), perSecond, 0)
	b.report.add(what+"server CPU for each", median(cpu), "seconds", 0)
	b.report.add(what+"p99 of others", median(with), "seconds", 0)
	b.report.add(what+"p99 of others, ratio to without it", median(with)/median(without), "ratio", 2)
	return nil
}

func percentile(took []time.Duration, p int) float64 {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)].Seconds()
}

// flooder is connections on which one identity asks for certificates.
type flooder struct {
	answered atomic.Int64
	end      context.CancelFunc
	group    *errgroup.Group
}

func startFlood(ctx context.Context, addr string, config *tls.Config, r signing) (*flooder, error) {
	ctx, end := context.WithCancel(ctx)
	f := &flooder{end: end, group: new(errgroup.Group)}
	for range floodConns {
		s, err := dialSigner(ctx, addr, config)
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		s.framer.ReadMetaHeaders = nil // decoding costs more than the rest
		c := &floodConn{signer: s, free: make(chan struct{}, 90), flooder: f}
		f.group.Go(func() error { return c.write(ctx, r) })
		f.group.Go(c.read)
	}
	return f, nil
}

func (f *flooder) stop() error {
	f.end()
	return f.group.Wait()
}

// floodConn is one connection of a flood. The server takes 100 streams of it at a time.
// One goroutine reads it, and one writes frames that are encoded once.
type floodConn struct {
	*flooder
	*signer
	free    chan struct{} // holds one element for each stream without an answer
	allowed atomic.Int64  // bytes that the server accepts
}

func (c *floodConn) write(ctx context.Context, r signing) error {
	defer func() { _ = c.Close() }()
	first, next, err := encodeTwice(r)
	if err != nil {
		return err
	}
	message := int64(prefixBytes + len(r.csr))
	c.allowed.Add(initialCredit)
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	frames, stream, start, sent := first, uint32(1), time.Now(), 0
	var batch []byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		due := int(time.Since(start).Seconds()*floodRate/floodConns) - sent
		batch = batch[:0]
		for range due {
			if c.allowed.Load() < message || len(c.free) == cap(c.free) {
				break
			}
			c.free <- struct{}{}
			c.allowed.Add(-message)
			batch = appendFrames(batch, frames, stream)
			frames, stream = next, stream+2
		}
		sent += max(due, 0) // requests that could not be sent are dropped
		if _, err := c.Write(batch); err != nil && ctx.Err() == nil {
			return fmt.Errorf("flood: %w", err)
		}
	}
}

// read counts answers until the connection ends.
func (c *floodConn) read() error {
	for {
		frame, err := c.next()
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("flood: %w", err)
		}
		switch f := frame.(type) {
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				c.allowed.Add(int64(f.Increment))
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				c.answered.Add(1)
				<-c.free
			}
		case *http2.RSTStreamFrame: // NO_ERROR follows an answer to a request that was not read
			if f.ErrCode != http2.ErrCodeNo {
				return fmt.Errorf("flood: the server answers %v", frame)
			}
		}
	}
}

// encodeTwice encodes a request as the first one of a connection and as a later one, whose
// headers refer to headers that the server remembers.
func encodeTwice(r signing) (first, next []byte, err error) {
	var out bytes.Buffer
	c := &connection{framer: http2.NewFramer(&out, nil)}
	c.encoder = hpack.NewEncoder(&c.block)
	s := &signer{connection: c}
	err = s.write(r)
	first = bytes.Clone(out.Bytes())
	out.Reset()
	err = errors.Join(err, s.write(r))
	return first, out.Bytes(), err
}

// appendFrames appends frames with another stream ID.
func appendFrames(b, frames []byte, stream uint32) []byte {
	const header = 9
	for len(frames) > 0 {
		n := header + (int(frames[0])<<16 | int(frames[1])<<8 | int(frames[2]))
		at := len(b)
		b = append(b, frames[:n]...)
		binary.BigEndian.PutUint32(b[at+5:], stream)
		frames = frames[n:]
	}
	return b
}
