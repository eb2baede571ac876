// Command meshctl runs and explains a service mesh of several Kubernetes
// clusters on plain upstream Envoy.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/commands"
)

func main() {
	runtime.MemProfileRate = 0 // until serve --profiling
	findDeadServers()
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup stays in force
		signals = append(signals, syscall.SIGHUP)
	}
	incoming := make(chan os.Signal, 2)
	signal.Notify(incoming, signals...)
	ctx, cancel := context.WithCancel(context.Background())
	hurry := make(chan struct{})
	var orderly atomic.Bool // the command handles the second signal
	go func() {
		<-incoming
		cancel()
		if orderly.Load() {
			<-incoming
			close(hurry)
		}
		signal.Stop(incoming) // the next signal kills
	}()

	os.Exit(commands.Run(ctx, &cli.Env{
		Stdin:     os.Stdin,
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
		LookupEnv: os.LookupEnv,
		Environ:   os.Environ,
		Now:       time.Now,
		Plugin:    strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-"),
		Hurry: func() <-chan struct{} {
			orderly.Store(true)
			return hurry
		},
		IgnoreSIGPIPE: func() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }, // the signal is dropped
	}, os.Args[1:]))
}

// findDeadServers lets client-go ping a connection to an API server after 3 seconds of
// silence, as connections of remote secrets do, instead of 30. client-go reads the setting
// only from the environment.
func findDeadServers() {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "3", "HTTP2_PING_TIMEOUT_SECONDS": "2"} {
		if _, set := os.LookupEnv(name); !set {
			_ = os.Setenv(name, seconds) // on failure the default applies
		}
	}
}
