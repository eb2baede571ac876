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

// What a flood of one identity is measured with.
const (
	floodRate  = 10_000 // requests a second
	floodConns = 4
	calmRate   = 200 // requests a second of all others together
)

// flood measures how long others wait for a certificate while one identity
// asks floodRate times a second. Rounds with and without it alternate.
func (b *bench) flood(ctx context.Context, m *meshctl, clients []*signer, requests []signing, config *tls.Config) error {
	var without, with, sent, cpu []float64
	for range b.rounds {
		before, err := m.cpu()
		if err != nil {
			return err
		}
		took, err := calm(ctx, clients, requests[1:])
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
		took, err = calm(ctx, clients, requests[1:])
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

// calm has the clients ask for the certificates at calmRate, and returns how
// long each took from when it was due.
func calm(ctx context.Context, clients []*signer, requests []signing) ([]time.Duration, error) {
	took := make([]time.Duration, len(requests))
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for c, conn := range clients {
		g.Go(func() error {
			for i := c; i < len(requests); i += len(clients) {
				due := start.Add(time.Duration(i) * time.Second / calmRate)
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Until(due)):
				}
				asked := time.Now() // not due: a late timer is this process's fault
				if _, err := conn.ask(requests[i]); err != nil {
					return fmt.Errorf("certificate %d: %w", i, err)
				}
				took[i] = time.Since(asked)
			}
			return nil
		})
	}
	return took, g.Wait()
}

func percentile(took []time.Duration, p int) float64 {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)].Seconds()
}

// flooding is connections on which one identity asks for certificates. They
// speak HTTP/2 with frames that are encoded once, as a client of gRPC would
// take more of the processors than the server does.
type flooding struct {
	answered atomic.Int64
	end      context.CancelFunc
	group    *errgroup.Group
}

func startFlood(ctx context.Context, addr string, config *tls.Config, s signing) (*flooding, error) {
	ctx, end := context.WithCancel(ctx)
	f := &flooding{end: end, group: new(errgroup.Group)}
	config = config.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	for range floodConns {
		conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		c := &floodConn{conn: conn, framer: http2.NewFramer(nil, conn), free: make(chan struct{}, 90), flooding: f}
		f.group.Go(func() error { return c.write(ctx, s) })
		f.group.Go(c.read)
	}
	return f, nil
}

func (f *flooding) stop() error {
	f.end()
	return f.group.Wait()
}

// floodConn is one connection of a flood. The server takes 100 streams of it
// at a time.
type floodConn struct {
	*flooding
	conn   net.Conn
	framer *http2.Framer // to read
	free   chan struct{} // holds one for each stream that is not answered
	credit atomic.Int64  // bytes of messages that the server takes
}

func (c *floodConn) write(ctx context.Context, s signing) error {
	defer func() { _ = c.conn.Close() }()
	first, next := floodFrames(s)
	message := int64(len(s.csr)) + 5
	c.credit.Add(65_535)
	const tick = time.Millisecond
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	var begin bytes.Buffer
	framer := http2.NewFramer(&begin, nil)
	begin.WriteString(http2.ClientPreface)
	err := errors.Join(framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}), framer.WriteWindowUpdate(0, 1<<30))
	if _, e := c.conn.Write(begin.Bytes()); err != nil || e != nil {
		return errors.Join(err, e)
	}
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
			if c.credit.Load() < message || len(c.free) == cap(c.free) {
				break
			}
			c.free <- struct{}{}
			c.credit.Add(-message)
			batch = appendFrames(batch, frames, stream)
			frames, stream = next, stream+2
		}
		sent += max(due, 0) // what could not be sent is not made up for
		if _, err := c.conn.Write(batch); err != nil {
			return fmt.Errorf("flood: %w", err)
		}
	}
}

// read counts answers until the connection ends.
func (c *floodConn) read() error {
	for {
		frame, err := c.framer.ReadFrame()
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("flood: %w", err)
		}
		switch f := frame.(type) {
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				c.credit.Add(int64(f.Increment))
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				c.answered.Add(1)
				<-c.free
			}
		case *http2.RSTStreamFrame: // after an answer, to a request that it has not read
			if f.ErrCode != http2.ErrCodeNo {
				return fmt.Errorf("flood: the server answers %v", frame)
			}
		case *http2.GoAwayFrame:
			return fmt.Errorf("flood: the server answers %v", frame)
		}
	}
}

// floodFrames encodes a request, the first of a connection and all others:
// these name headers that the server remembers.
func floodFrames(s signing) (first, next []byte) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	request := func() []byte {
		block.Reset()
		for _, f := range requestHeaders(s) {
			_ = encoder.WriteField(f) // to memory
		}
		message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(s.csr)))
		var out bytes.Buffer
		framer := http2.NewFramer(&out, nil)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = framer.WriteData(1, true, append(message, s.csr...))
		return out.Bytes()
	}
	return request(), request()
}

// appendFrames adds frames with another stream's number.
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
