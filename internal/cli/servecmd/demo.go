package servecmd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/demo"
)

type demoOptions struct {
	once     bool
	keep     string
	envoy    string
	requests int
	xds      string
}

// NewDemo returns the command demo.
func NewDemo(env *cli.Env) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a mesh of two clusters and two networks on this machine",
		Long: `Run a mesh of two clusters on two networks on this machine, with real Envoys, mTLS
and east-west gateways. A network is a range of loopback addresses (127.1.0.0/16,
127.2.0.0/16), and a pod is one of its addresses. The demo needs Linux but not root.
Ctrl-C stops and removes everything; a second Ctrl-C does not wait.

Each client calls helloworld, which runs as v1 in cluster1 and as v2 in cluster2: half
of the responses come through the gateway of the other network. After a check the demo
shows the responses of each version in each second, and commands to try. When a part
fails, the logs stay in $XDG_STATE_HOME/meshctl/demo/logs.`,
		Example: `  # Watch it until Ctrl-C
  meshctl demo

  # Check that it works, and keep YAML, certificates, logs and configuration dumps
  meshctl demo --once --keep /tmp/two-clusters`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "Check the mesh and stop, with exit code 0 if it works")
	cli.DirVar(f, &o.keep, "keep", "Keep all files in this new `directory`")
	f.StringVar(&o.envoy, "envoy", "", "`File` of Envoy, 1.36 or later (default $ENVOY, else .cache/envoy/envoy, else envoy on PATH)")
	cli.NumberVar(f, &o.requests, "requests", 200, 1, maxDemoRequests, "`Number` of requests that each client sends for the check")
	cli.ChoiceVar(f, &o.xds, "xds", "Variant of xDS; delta is incremental, sotw is state of the world", "delta", "sotw")
	return cmd
}

// maxDemoRequests bounds the time of the check.
const maxDemoRequests = 1_000_000

func (o *demoOptions) run(ctx context.Context, env *cli.Env) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find meshctl itself: %w", err)
	}
	options := demo.RunOptions{
		Options: demo.Options{
			Program: program,
			Envoy:   cmp.Or(o.envoy, env.Getenv("ENVOY")),
			Dir:     o.keep,
			SotW:    o.xds == "sotw",
			Rand:    rand.Reader,
			Now:     env.Now,

			LookupEnv: env.LookupEnv,
		},
		Once:     o.once,
		Requests: o.requests,
		Stdout:   env.Stdout,
		Stderr:   env.Stderr,
	}
	if size := env.TerminalSize(); size != nil {
		options.Width = func() int { width, _ := size(); return width }
	}
	if env.Hurry != nil {
		options.Hurry = env.Hurry()
	}
	if o.keep == "" {
		dir, err := stateDir(env, "demo")
		if err != nil {
			return errors.New("neither XDG_STATE_HOME nor HOME is set, so there is no place for logs: give --keep DIR")
		}
		options.Logs = filepath.Join(dir, "logs")
	}
	env.IgnoreSIGPIPE() // it must clean up
	return demo.Run(ctx, options)
}
