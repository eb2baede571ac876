// Command meshctl runs and explains a service mesh of several Kubernetes
// clusters on plain upstream Envoy.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup stays in force
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // the second signal kills

	os.Exit(cli.Run(ctx, &cli.Env{
		Stdin:     os.Stdin,
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
		LookupEnv: os.LookupEnv,
		Environ:   os.Environ,
		Now:       time.Now,
	}, os.Args[1:]))
}
