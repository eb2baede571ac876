package agent

import (
	"context"
	"fmt"
	"net"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/peer"
	"github.com/meshctl/meshctl/internal/agent/sts"
)

// listenSTS returns the server that exchanges tokens.
func listenSTS(c *config.STS, guard *peer.Guard, opts Options) (socket, error) {
	exchange := sts.File(c.File, opts.Now)
	if c.File == "" {
		var err error
		if exchange, err = sts.Endpoint(c.Endpoint, c.RootFile); err != nil {
			return socket{}, err
		}
	}
	l, err := net.Listen("tcp", c.Addr.String())
	if err != nil {
		return socket{}, fmt.Errorf("exchange tokens: %w; choose another port with --sts-port", err)
	}
	return socket{listener: guard.Listener(l), serve: func(ctx context.Context, l net.Listener) error { return sts.Serve(ctx, l, exchange, opts.Log) }}, nil
}
