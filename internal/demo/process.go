package demo

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/meshctl/meshctl/internal/process"
)

// stopTimeout is the time a child has to end before it is killed.
const stopTimeout = 10 * time.Second

// command is a meshctl to start.
type command struct {
	role string // for messages
	args []string
	env  []string
	dir  string
	log  string // path of its log
}

// child is a meshctl of the demo.
type child struct {
	*process.Process
	command
}

// startChild starts program and calls ended when it has ended. The end of ctx does not end
// it. A child whose parent dies gets SIGTERM, as an agent must stop its Envoy.
func startChild(ctx context.Context, program string, c command, ended func(*child)) (*child, error) {
	p, err := process.Start(context.WithoutCancel(ctx), process.Command{
		Name: "the " + c.role, Path: program, Args: c.args, Env: c.env, Dir: c.dir, LogFile: c.log,
		DeathSignal: syscall.SIGTERM,
	})
	if err != nil {
		return nil, err
	}
	started := &child{p, c}
	go func() {
		<-p.Done()
		ended(started)
	}()
	return started, nil
}

// stop ends the child; the end of ctx kills it.
func (c *child) stop(ctx context.Context) error {
	killed, err := c.Stop(ctx, stopTimeout)
	if killed && ctx.Err() == nil {
		return fmt.Errorf("the %s did not end within %s and was killed; its log: %s", c.role, stopTimeout, c.log)
	}
	return err
}

// cause reports why the child ended, and the path of its log.
func (c *child) cause() error {
	if err := c.Err(); err != nil {
		return fmt.Errorf("%w (log: %s)", err, c.log)
	}
	return fmt.Errorf("the %s ended without an error (log: %s)", c.role, c.log)
}
