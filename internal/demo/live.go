package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/meshctl/meshctl/internal/output"
)

const (
	liveRate     = 10 // requests a second and client
	liveInterval = time.Second
)

// live sends requests from all clients and prints a line a second, until ctx ends or the
// reader of w has gone. It returns nil unless the mesh failed. With width, each line overwrites
// the line before.
func (m *Mesh) live(ctx context.Context, w io.Writer, width func() int) error {
	type outcome struct {
		client int
		answer Answer
		err    error
	}
	outcomes := make(chan outcome)
	var senders sync.WaitGroup
	defer senders.Wait()
	for i, c := range m.clients {
		senders.Go(func() {
			tick := time.NewTicker(time.Second / liveRate)
			defer tick.Stop()
			for {
				a, err := c.Get(ctx)
				select {
				case outcomes <- outcome{i, a, err}:
				case <-ctx.Done():
					return
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}

	tallies := make([]Tally, len(m.clients))
	tick := time.NewTicker(liveInterval)
	defer tick.Stop()
	for {
		select {
		case o := <-outcomes:
			tallies[o.client].add(o.answer, o.err)
		case <-tick.C:
			line := liveLine(m.clients, tallies)
			if width != nil {
				fmt.Fprintf(w, "\r%s\x1b[K", fit(line, width()))
			} else {
				fmt.Fprintln(w, line)
			}
			clear(tallies)
		case <-ctx.Done():
			if width != nil {
				fmt.Fprintln(w)
			}
			cause := context.Cause(ctx)
			if errors.Is(cause, context.Canceled) || errors.Is(cause, syscall.EPIPE) {
				return nil
			}
			return cause
		}
	}
}

// liveLine renders the answers to each client and the cause of a failure, such as
// "cluster1:  4 v1,  6 v2   cluster2:  5 v1,  2 v2, 3 failed   (503 Service Unavailable)".
func liveLine(clients []*Client, tallies []Tally) string {
	var parts []string
	var last error
	for i, c := range clients {
		versions := tallies[i].Versions()
		text := fmt.Sprintf("%s: %2d v1, %2d v2", c.Cluster, versions["v1"], versions["v2"])
		if n := len(tallies[i].Failed); n > 0 {
			last = tallies[i].Failed[n-1]
			text += fmt.Sprintf(", %d failed", n)
		}
		parts = append(parts, text)
	}
	if last != nil {
		parts = append(parts, "("+shortCause(last)+")")
	}
	return strings.Join(parts, "   ")
}

// shortCause returns the cause of a failed request in a few words.
func shortCause(err error) string {
	var (
		status  *statusError
		network net.Error
		errno   syscall.Errno
	)
	switch {
	case errors.As(err, &status):
		return output.Escape(status.status)
	case errors.As(err, &network) && network.Timeout():
		return "no answer in time"
	case errors.As(err, &errno):
		return errno.Error()
	default:
		return output.Escape(err.Error())
	}
}

// fit cuts the line so that it fits one row of a terminal without its last column, after
// which some terminals begin a new row. 0 columns means unknown.
func fit(line string, columns int) string {
	runes := []rune(line)
	if columns <= 0 || len(runes) < columns {
		return line
	}
	if columns < 2 {
		return ""
	}
	return string(runes[:columns-2]) + "…"
}
