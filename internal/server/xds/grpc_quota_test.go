package xds

import (
	"context"
	"net"
	"runtime"
	"testing"
	"testing/synctest"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestGRPCDoesNotBlockBelowQuota pins behaviour of gRPC that sessions rely on
// and gRPC does not promise. While less than maxUnwritten bytes are unwritten, SendMsg
// accepts a frame of any size and returns, even if the peer reads nothing. gRPC keeps
// the frame without copying it and reports when it is written. If the test fails after
// an upgrade of gRPC, package xds needs a new design, because a session that blocks in
// SendMsg delays others.
func TestGRPCDoesNotBlockBelowQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPeer(t)
		// The peer's window: the frame is written at once, and the window is then
		// closed.
		if !p.send(t, "a frame as large as the window", newQuotaFrame(peerWindow-1<<10)).written {
			t.Fatal("a frame within the peer's window is not written")
		}
		size := 0
		for size < maxUnwritten-1<<10 {
			if p.send(t, "a small frame while there is room", newQuotaFrame(1<<10-200)).written {
				t.Fatal("a frame is written beyond the peer's window")
			}
			size += 1 << 10
		}
		large := newQuotaFrame(16 << 20)
		before := heap()
		if p.send(t, "the largest frame, while there is room", large).written {
			t.Fatal("the largest frame is written beyond the peer's window")
		}
		if grown := heap() - before; grown > 4<<20 {
			t.Errorf("a frame that waits takes %d bytes besides its own", grown)
		}
		// From here on gRPC blocks senders, which is why sessions ask first.
		last := make(chan error, 1)
		p.frames <- func(s grpc.ServerStream) { last <- s.SendMsg(newQuotaFrame(1).Frame) }
		synctest.Wait()
		select {
		case err := <-last:
			t.Errorf("gRPC takes frames without bound (error %v): maxUnwritten may be thought over", err)
		default:
		}
		p.read()
		synctest.Wait()
		if !large.written {
			t.Error("the end of a frame that was written is not told")
		}
		if err := <-last; err != nil {
			t.Error(err)
		}
	})
}

const peerWindow = 64 << 10 // the smallest that gRPC allows a client

// quotaPeer is a stream whose client reads on demand. The server sends on demand, too.
type quotaPeer struct {
	frames chan func(grpc.ServerStream)
	client grpc.ClientStream
}

// quotaFrame is a frame that records whether it was written.
type quotaFrame struct {
	*xdswire.Frame
	written bool
}

// newQuotaFrame returns a frame of about size bytes.
func newQuotaFrame(size int) *quotaFrame {
	var e xdswire.Encoder
	r := e.Raw(xdswire.ClusterType, "c", make([]byte, size))
	f := &quotaFrame{Frame: xdswire.NewFrame(xdswire.Header{TypeURL: xdswire.ClusterType}, xdswire.NewBody(xdswire.SotW, r))}
	f.WhenWritten(func() { f.written = true })
	return f
}

// send sends a frame, and fails if that blocks while the peer does not read.
func (p *quotaPeer) send(t *testing.T, what string, f *quotaFrame) *quotaFrame {
	t.Helper()
	done := make(chan error, 1)
	p.frames <- func(s grpc.ServerStream) { done <- s.SendMsg(f.Frame) }
	synctest.Wait()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("gRPC makes the sender wait: %s", what)
	}
	return f
}

// read reads everything sent.
func (p *quotaPeer) read() {
	go func() {
		for p.client.RecvMsg(&discoveryv3.DiscoveryResponse{}) == nil {
		}
	}()
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func startPeer(t *testing.T) *quotaPeer {
	t.Helper()
	p := &quotaPeer{frames: make(chan func(grpc.ServerStream))}
	h := newUnstartedHub()
	srv := grpc.NewServer(h.ServerOptions(nil)...)
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "quota", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Send", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			for {
				select {
				case send := <-p.frames:
					send(s)
				case <-s.Context().Done():
					return nil
				}
			}
		}}},
	}, nil)
	l := bufconn.Listen(16 << 20) // the window is the only limit
	go func() { _ = srv.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithInitialWindowSize(peerWindow), grpc.WithInitialConnWindowSize(16<<20),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.client, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/quota/Send")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		conn.Close()
		srv.Stop()
	})
	synctest.Wait()
	return p
}
