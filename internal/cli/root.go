// Package cli holds what the commands of meshctl share: the root command, Env,
// configuration, errors and exit codes, common flags, and printing. The commands
// are in packages below it, which never import each other; package commands
// assembles them.
//
// A command is an options struct, a constructor that binds flags to it, and a run
// method that never sees cobra. Results go to Env.Stdout, everything else to
// Env.Stderr.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
)

// Env is the environment of a command.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
	// Environ lists all environment variables as NAME=value, for commands that
	// read variables of unknown names. Nil means none.
	Environ func() []string
	Now     func() time.Time
	// PodDir holds the service account credential of a pod. Empty means the
	// directory in which the kubelet mounts it.
	PodDir string
	// Hurry is for a command that needs time to end. After the call the second
	// signal closes the channel and the third one kills the process; otherwise
	// the second one kills it. Nil means that there are no signals.
	Hurry func() <-chan struct{}
	// Interactive is set by Run if a person can answer questions: Stdin and Stderr are
	// terminals.
	Interactive bool
	// Plugin is set when kubectl runs the program as kubectl-mesh.
	Plugin bool
	// IgnoreSIGPIPE is for a command that must go on, or clean up, when its
	// output has no reader: after the call such a write fails but does not kill
	// the process. Nil does nothing.
	IgnoreSIGPIPE func()
}

// Getenv returns an environment variable, empty if it is not set.
func (e *Env) Getenv(name string) string {
	value, _ := e.LookupEnv(name)
	return value
}

// XDGDir returns the directory in a variable of the XDG rules, else its default place in
// $HOME. It ignores relative paths, as the rules require, and returns "" without any other.
func (e *Env) XDGDir(variable, inHome string) string {
	if dir := e.Getenv(variable); filepath.IsAbs(dir) {
		return dir
	}
	if home := e.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, inHome)
	}
	return ""
}

// Command makes a command with its subcommands.
type Command func(*Env) *cobra.Command

// Group is a list of commands that the help shows together. The commands of a
// group without a title come last.
type Group struct {
	Title    string
	Commands []Command
}

// Run executes the command that args name and returns the exit code.
func Run(ctx context.Context, env *Env, args []string, groups ...Group) int {
	own := *env
	own.Interactive = isTerminal(env.Stdin) && isTerminal(env.Stderr)
	own.Stdin = files.Until(ctx, env.Stdin) // an interrupt ends a read
	own.Stderr = output.Text(env.Stderr)    // messages repeat text from servers
	if own.IgnoreSIGPIPE == nil {
		own.IgnoreSIGPIPE = func() {}
	}
	root := NewRoot(&own, groups...)
	root.SetArgs(args)
	var wrong error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		// cobra does not check the words before --help.
		if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
			if wrong = cmd.ValidateArgs(words); wrong != nil {
				return
			}
		}
		help(cmd, args)
	})
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = wrong
	}
	return report(own.Stderr, cmd, err)
}

// NewRoot returns the root command with the commands of the groups.
func NewRoot(env *Env, groups ...Group) *cobra.Command {
	root := &cobra.Command{
		Use:   "meshctl",
		Short: "Run and explain a service mesh of several clusters on upstream Envoy",
		Long: `meshctl runs and explains a service mesh of several Kubernetes clusters on
plain upstream Envoy. It is compatible with Istio: one mesh may use both.

Some objects and fields of Istio have no effect yet: docs/api-support.md lists every
kind and field.`,
		Example: `  # Run a mesh of two clusters on this machine
  meshctl demo

  # Show the clusters of an Envoy, and whether each proxy has its configuration
  meshctl pc clusters --admin 127.0.0.1:15000
  meshctl ps

  # Make the certificates of a mesh of two clusters
  meshctl certs root-ca --out certs
  meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	if env.Plugin {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl mesh"}
	}
	root.Version = CurrentBuild().String() // no template of our own: see .golangci.yml
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)

	var configFile string
	root.PersistentFlags().StringVar(&configFile, configFlag, "",
		"Configuration `file` with flag names as keys (default $XDG_CONFIG_HOME/meshctl/config.yaml)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		switch cmd.Name() {
		case "help", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
			return nil // help and completion work with a broken configuration file
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
	prepare(root)
	return root
}

// prepare gives cmd and all commands below it the same behaviour: a command without
// Args takes none, a group refuses unknown subcommands, errors of a run are
// distinguished from wrong usage, and flags complete their values.
func prepare(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		prepare(sub)
	}
	completeFlagValues(cmd)
	if cmd.HasSubCommands() {
		if cmd.Args == nil {
			cmd.Args = unknownCommand
		}
		if !cmd.Runnable() {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			return
		}
	}
	if run := cmd.RunE; run != nil {
		if cmd.Args == nil {
			cmd.Args = NoArgs
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			return runError(run(cmd, args))
		}
	}
}

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q%s", args[0], fileFlagHint(cmd, args[0]))
	}
	return nil
}

// fileFlagHint advises the flag -f of a command that has it instead of an argument that names a file or
// a directory.
func fileFlagHint(cmd *cobra.Command, arg string) string {
	f := cmd.Flags().ShorthandLookup("f")
	if f == nil || !strings.HasPrefix(f.Name, "file") {
		return ""
	}
	if _, err := os.Stat(arg); err != nil {
		return ""
	}
	return fmt.Sprintf(": it names a file or a directory, want --%s %s", f.Name, arg)
}
