// Package cli is the command tree: flags in, one call into a package below,
// result out. Each command has a file of its own with an options struct, a
// constructor that binds flags to it, and a run method that never sees cobra.
// Results go to Env.Stdout, all talk to Env.Stderr.
package cli

import (
	"context"
	"errors"
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

func (e *Env) outliveReaders() {
	if e.OutliveReaders != nil {
		e.OutliveReaders()
	}
}

// group is commands that the help shows together.
type group struct {
	title        string
	constructors []func(*Env) *cobra.Command
}

// groups lists the commands, one a line, in the order of the help. Those
// without a title come last, as additional ones.
func groups() []group {
	return []group{
		{"Run a mesh:", []func(*Env) *cobra.Command{
			newDemoCmd,
			newServeCmd,
			newAgentCmd,
		}},
		{"See what it does:", []func(*Env) *cobra.Command{
			newProxyConfigCmd,
			newProxyStatusCmd,
			newExplainCmd,
			newXDSCmd,
			newLogLevelCmd,
		}},
		{"Join clusters:", []func(*Env) *cobra.Command{
			newMulticlusterCmd,
			newCreateRemoteSecretCmd,
			newRemoteSecretCmd,
			newRemoteClustersCmd,
		}},
		{"Prove who is who:", []func(*Env) *cobra.Command{
			newCertsCmd,
			newTokenCmd,
		}},
		{"", []func(*Env) *cobra.Command{
			newExperimentalCmd,
			newVersionCmd,
			newEnvironmentTopic,
		}},
	}
}

// Exit codes of Run.
const (
	exitOK       = 0
	exitFailure  = 1 // the command could not do its work
	exitUsage    = 2 // flags, arguments, environment or configuration file are wrong
	exitFindings = 3 // the command worked and found problems
)

// Run executes the command that args name and returns the exit code: 0 done,
// 1 failed, 2 wrong usage, 3 done and found problems.
func Run(ctx context.Context, env *Env, args []string) int {
	own := *env
	own.Stdin = files.Until(ctx, env.Stdin) // nobody is made to wait for input
	own.Stderr = output.Text(env.Stderr)    // errors and warnings repeat what servers say
	root := newRootCmd(&own)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return report(own.Stderr, cmd, err)
}

// report tells the person what went wrong and returns the exit code for it.
func report(stderr io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var (
		run      *runError
		usage    *usageError
		findings *findingsError
	)
	switch {
	case errors.As(err, &findings):
		fmt.Fprintln(stderr, findings)
		return exitFindings
	case errors.Is(err, context.Canceled) && cmd.Context().Err() != nil:
		fmt.Fprintln(stderr, "Error: interrupted")
		return exitFailure
	// What fails before a command's run is what was typed.
	case errors.As(err, &usage), !errors.As(err, &run):
		fmt.Fprintf(stderr, "Error: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(stderr, "Error: %v\n", err)
		return exitFailure
	}
}

// withoutEffectHelp names the kinds of Istio that have no effect.
const withoutEffectHelp = `AuthorizationPolicy and RequestAuthentication
are not enforced; VirtualService, DestinationRule, ServiceEntry, WorkloadGroup,
ProxyConfig, Telemetry, WasmPlugin and TrafficExtension change nothing.`

func newRootCmd(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "meshctl",
		Short: "Run and explain a service mesh of several clusters on upstream Envoy",
		Long: `meshctl runs and explains a service mesh of several Kubernetes clusters on
plain upstream Envoy. It keeps Istio's contracts, so a mesh may mix both.

Not all of Istio's YAML has an effect yet: ` + withoutEffectHelp + `

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
	root.Version = currentBuild().String() // without a template of our own: see .golangci.yml
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

	for _, g := range groups() {
		if g.title != "" {
			root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		}
		for _, newCmd := range g.constructors {
			cmd := newCmd(env)
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
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
			cmd.Args = noArgs
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return &runError{err}
			}
			return nil
		}
	}
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	var known []string
	for _, sub := range cmd.Commands() {
		known = append(append(known, sub.Name()), sub.Aliases...)
	}
	if near := didYouMean(args[0], known); near != "" {
		return fmt.Errorf("%w%s", err, near)
	}
	if cmd != cmd.Root() && cmd.Name() != experimentalName {
		return err
	}
	if path := elsewhere(cmd, args[0]); path != "" {
		return fmt.Errorf("%w, it is %s", err, path)
	}
	if instead := counterpart(args[0]); instead != "" {
		return fmt.Errorf("%w; %s", err, instead)
	}
	return err
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// runError marks what a command's run returned.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// usageError is wrong usage that only a command's run can see.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef returns an error that exits with code 2 and points to the help.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// findingsError is the end of a command that worked and found problems.
type findingsError struct{ summary string }

func (e *findingsError) Error() string { return e.summary }

// findingsf returns an error that exits with code 3. The findings themselves
// belong on Stdout; the summary, one line, is printed to Stderr.
func findingsf(format string, args ...any) error {
	return &findingsError{fmt.Sprintf(format, args...)}
}
