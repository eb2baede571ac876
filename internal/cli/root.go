// Package cli is the command tree: flags in, one call into a package below,
// result out. Each command has a file of its own with an options struct, a
// constructor that binds flags to it, and a run method that never sees cobra.
// Results go to Env.Stdout, all talk to Env.Stderr.
package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
)

// Env is what a command has of the world outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
	// Environ lists the whole environment as NAME=value, for the commands
	// that read variables of unknown names. Nil means empty.
	Environ func() []string
	Now     func() time.Time
	// PodDir is where a pod finds the credential of its service account; empty
	// is where the kubelet mounts it.
	PodDir string
	// Hurry is for a command whose end takes time: from its call on, the
	// second signal closes the channel and only the third kills, as otherwise
	// the second does. Nil means that there are no signals.
	Hurry func() <-chan struct{}
	// OutliveReaders is for a command that others depend on, or that has to
	// clean up: from its call on, writing to a pipe that nobody reads any more
	// fails, as otherwise it ends the program. Nil changes nothing.
	OutliveReaders func()
}

// LookupFirst is the first of the variables that is not empty.
func (e *Env) LookupFirst(names ...string) string {
	for _, name := range names {
		if value, _ := e.LookupEnv(name); value != "" {
			return value
		}
	}
	return ""
}

// Command makes a command, and those below it.
type Command func(*Env) *cobra.Command

// Group is commands that the help shows together. A group without a title
// comes last, as additional commands.
type Group struct {
	Title    string
	Commands []Command
}

// Run runs the command of the groups that args name and returns the exit code: 0
// done, 1 failed, 2 wrong usage, 3 done and found problems.
func Run(ctx context.Context, env *Env, args []string, groups ...Group) int {
	own := *env
	own.Stdin = files.Until(ctx, env.Stdin) // nobody is made to wait for input
	own.Stderr = output.Text(env.Stderr)    // errors and warnings repeat what servers say
	if own.OutliveReaders == nil {
		own.OutliveReaders = func() {}
	}
	root := NewRoot(&own, groups...)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return report(own.Stderr, cmd, err)
}

// WithoutEffectHelp names the kinds of Istio that have no effect.
const WithoutEffectHelp = `AuthorizationPolicy and RequestAuthentication
are not enforced; VirtualService, DestinationRule, ServiceEntry, WorkloadGroup,
ProxyConfig, Telemetry, WasmPlugin and TrafficExtension change nothing.`

// NewRoot makes the root command with the commands of the groups below it.
func NewRoot(env *Env, groups ...Group) *cobra.Command {
	root := &cobra.Command{
		Use:   "meshctl",
		Short: "Run and explain a service mesh of several clusters on upstream Envoy",
		Long: `meshctl runs and explains a service mesh of several Kubernetes clusters on
plain upstream Envoy. It keeps Istio's contracts, so a mesh may mix both.

Not all of Istio's YAML has an effect yet: ` + WithoutEffectHelp + `

docs/api-support.md lists every kind and field.`,
		Example: `  # watch a two-cluster mesh work on this machine
  meshctl demo

  # what has this Envoy, and which proxies are behind or refuse something?
  meshctl pc clusters --admin 127.0.0.1:15000
  meshctl ps

  # the certificates of a mesh of two clusters
  meshctl certs root-ca --out certs
  meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.Version = CurrentBuild().String() // without a template of our own: see .golangci.yml
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)

	var configFile string
	root.PersistentFlags().StringVar(&configFile, "config", "",
		"Configuration `file` with flag names as keys (default $XDG_CONFIG_HOME/meshctl/config.yaml)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		switch cmd.Name() {
		case "help", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
			return nil // a broken file must not break help and completion
		}
		return configure(env, cmd)
	}

	for _, g := range groups {
		if g.Title != "" {
			root.AddGroup(&cobra.Group{ID: g.Title, Title: g.Title})
		}
		for _, newCmd := range g.Commands {
			cmd := newCmd(env)
			cmd.GroupID = g.Title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newEnvironmentTopic())
	root.SetFlagErrorFunc(flagError)
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			cmd.Args = helpArgs
		}
	}
	root.InitDefaultCompletionCmd()
	prepare(env, root)
	return root
}

// prepare gives cmd and all below it the same manners: a command without
// Args takes none, a group refuses unknown subcommands, and an error of a run
// is told from one of usage.
func prepare(env *Env, cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		prepare(env, sub)
	}
	completions(cmd)
	completeNamespaces(env, cmd)
	if cmd.HasSubCommands() {
		if !cmd.Runnable() {
			cmd.Args = unknownCommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		return
	}
	if run := cmd.RunE; run != nil {
		if cmd.Args == nil {
			cmd.Args = NoArgs
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return &runError{err}
			}
			return nil
		}
	}
}

func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}
