// Command meshctl runs and explains a service mesh of several Kubernetes
// clusters on plain upstream Envoy.
package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup stays in force
		signals = append(signals, syscall.SIGHUP)
	}
	incoming := make(chan os.Signal, 2)
	signal.Notify(incoming, signals...)
	ctx, cancel := context.WithCancel(context.Background())
	hurry := make(chan struct{})
	var orderly atomic.Bool // the command wants to hear of the second signal
	go func() {
		<-incoming
		cancel()
		if orderly.Load() {
			<-incoming
			close(hurry)
		}
		signal.Stop(incoming) // the next signal kills
	}()

	os.Exit(cli.Run(ctx, &cli.Env{
		Stdin:     os.Stdin,
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
		LookupEnv: os.LookupEnv,
		Environ:   os.Environ,
		Now:       time.Now,
		Hurry: func() <-chan struct{} {
			orderly.Store(true)
			return hurry
		},
	}, os.Args[1:]))
}
