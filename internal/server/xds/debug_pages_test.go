package xds

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestPagesWaitForRoom: Pages for a peer that does not read wait, up to a limit, and
// are sent once there is room.
func TestPagesWaitForRoom(t *testing.T) {
	h := newUnstartedHub()
	sent := 0
	s := newTestSession(t, h, "p", xdswire.SotW, func(*xdswire.Frame) error { sent++; return nil })
	s.writer = &streamWriter{size: maxUnwritten}
	s.pages.make = func(q pageRequest, nonce string) (*xdswire.Frame, error) {
		return xdswire.NewFrame(xdswire.Header{TypeURL: q.typeURL, Nonce: nonce}), nil
	}
	ask := func(nonce string) error { return s.sendPage(pageRequest{typeURL: xdswire.DebugType, nonce: nonce}) }
	for range maxPages {
		if err := ask(""); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(s.pages.nonce); err != nil || sent != 0 {
		t.Errorf("after an ACK: %d sent, %v", sent, err)
	}
	s.writer.size = 0
	s.catchUp()
	if sent != maxPages {
		t.Errorf("%d sent once there was room, want %d", sent, maxPages)
	}
	s.writer.size = maxUnwritten
	for range maxPages {
		if err := ask(""); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(""); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more than may wait: %v", err)
	}
}
