package servecmd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

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

func NewDemo(env *cli.Env) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a mesh of two clusters and two networks on this machine",
		Long: `Run a mesh of two clusters on two networks on this machine, with real Envoys,
mTLS and east-west gateways: a network is a range of loopback addresses
(127.1.0.0/16, 127.2.0.0/16), a pod an address of it. Linux only; nothing needs
root, and Ctrl-C ends and removes everything (a second one without waiting).

Each client asks helloworld, which runs as v1 in cluster1 and as v2 in cluster2:
half of the answers come through the gateway of the other network. After the
check the shares of each second are shown, and commands to try.
When a part fails, the logs stay in $XDG_STATE_HOME/meshctl/demo/logs.`,
		Example: `  # watch it until Ctrl-C
  meshctl demo

  # check that it works, keep YAML, certificates, logs and configuration dumps
  meshctl demo --once --keep /tmp/two-clusters`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "Check the mesh and stop: exit code 0 only if it does all that it should")
	cli.DirVar(f, &o.keep, "keep", "Keep everything that is written in this new `directory`")
	f.StringVar(&o.envoy, "envoy", "", "`Path` of Envoy, 1.36 or later (default $ENVOY, else .cache/envoy/envoy, else envoy on PATH)")
	f.IntVar(&o.requests, "requests", 200, "`Number` of requests that each client sends for the check")
	cli.ChoiceVar(f, &o.xds, "xds", "Variant of xDS, incremental or state of the world", "delta", "sotw")
	return cmd
}

// maxDemoRequests bounds how long the check takes.
const maxDemoRequests = 1_000_000

func (o *demoOptions) run(ctx context.Context, env *cli.Env) error {
	if o.requests < 1 || o.requests > maxDemoRequests {
		return cli.Usagef("--requests %d: want 1 to %d", o.requests, maxDemoRequests)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find meshctl itself: %w", err)
	}
	options := demo.RunOptions{
		Options: demo.Options{
			Program: program,
			Envoy:   o.envoy,
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
	if options.Envoy == "" {
		options.Envoy, _ = env.LookupEnv("ENVOY")
	}
	options.Width = terminalWidth(env.Stdout)
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
	env.IgnoreSIGPIPE() // there is much to clean up
	return demo.Run(ctx, options)
}

// terminalWidth returns what tells the columns of the terminal that w is, 0 if
// they are unknown, or nil if w is none.
func terminalWidth(w io.Writer) func() int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return width
	}
}
