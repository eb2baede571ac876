// Package pccmd holds the command proxy-config, which shows the configuration of an Envoy.
package pccmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

// NewProxyConfig returns the command proxy-config.
func NewProxyConfig(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "proxy-config",
		Aliases: []string{"pc"},
		Short:   "Show the configuration of an Envoy",
		Long: `Show the configuration of an Envoy in Istio's tables: endpoints, clusters, listeners,
routes, secrets, extensions and the bootstrap, or compare two Envoys.

` + cli.WorkloadHelp + ` If there are several pods, the command chooses one that is
ready. It reads the Envoy by port-forward through the API server.

Without WORKLOAD the source is the admin interface of a running Envoy (--admin) or a saved
response (--file, - for standard input): of /clusters?format=json for endpoints, of
/config_dump?include_eds for eds and all, and of /config_dump for all other commands.
Both sources work without Kubernetes. Only log --level and log --reset change anything.`,
		Example: `  # Show where the proxy sends requests for helloworld
  meshctl pc endpoints web-1.apps --envoy-cluster "outbound|5000||helloworld.sample.svc.cluster.local"
  meshctl pc endpoints deploy/web -n apps --context kind-cluster1

  # Read an Envoy without Kubernetes
  meshctl pc clusters --admin 127.0.0.1:15000

  # Read a saved dump
  curl -s 127.0.0.1:15000/config_dump > dump.json
  meshctl pc listeners -f dump.json`,
	}
	cmd.AddCommand(
		newPCEndpointsCmd(env),
		newPCClustersCmd(env),
		newPCListenersCmd(env),
		newPCRoutesCmd(env),
		newPCSecretsCmd(env),
		newPCExtensionsCmd(env),
		newPCAssignmentsCmd(env),
		newPCBootstrapCmd(env),
		newPCAllCmd(env),
		newPCLogCmd(env),
		newPCDiffCmd(env),
		newPCRootCompareCmd(env),
	)
	return cmd
}

// EnvoyFlags hold the flags for the source of a dump.
type EnvoyFlags struct {
	Source fetch.Source
	maxMiB int64
}

// Bind adds the flags to a set of flags.
func (f *EnvoyFlags) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.Source.Admin, "admin", "", "Admin interface of a running Envoy: `host:port` or http://host:port")
	fs.StringVarP(&f.Source.File, "file", "f", "", "`File` with a saved dump, - for standard input")
	cli.Alias(fs, "file", "filename")
	cli.Rivals(fs, "admin", "file")
	maxDumpVar(fs, &f.maxMiB)
}

// Check checks the flags. It accepts that none of them names an Envoy.
func (f *EnvoyFlags) Check(env *cli.Env) error {
	if f.Source.Admin != "" || f.Source.File != "" {
		if err := f.Source.Validate(); err != nil {
			return cli.Usagef("%w", err)
		}
	}
	f.Source.Stdin = env.Stdin
	f.Source.MaxSize = f.maxMiB << 20
	return nil
}

// maxDumpVar defines the size limit of a dump.
func maxDumpVar(fs *pflag.FlagSet, mib *int64) {
	cli.NumberVar(fs, mib, "max-size", 1024, 1, 1<<20, "Size limit of a dump, in `MiB`")
}

// Options hold the flags that commands with one Envoy share.
type Options struct {
	EnvoyFlags
	Pod    podFlags
	Output output.Format
	seen   proxyconfig.Seen // entries that the filter looked at
	// filters returns the flags that select entries, as they were given.
	filters func() string
}

// Request is a request to an admin interface, or a saved response to it, and the
// function that reads the response. The function returns resources, for JSON and YAML,
// or rows.
type Request struct {
	Path fetch.Request
	Read func(ctx context.Context, r io.Reader, resources bool) (Result, error)
}

// Result is the content of a response.
type Result struct {
	Table *output.Table
	None  string // the message for a table without rows, or
	of    string // the name of an entry that pcOptions counts
	JSON  any
	// write prints a result of several tables, instead of table.
	write func() error
}

// Command adds the shared flags to cmd and lets it show the result of a request.
func (o *Options) Command(env *cli.Env, cmd *cobra.Command, request Request) *cobra.Command {
	fs := cmd.Flags()
	o.Bind(fs)
	o.Pod.Bind(env, cmd)
	cli.TableVar(fs, &o.Output)
	cli.DurationVar(fs, &o.Source.Timeout, "timeout", 30*time.Second, "Longest wait for the answer of the admin interface")
	o.filters = filtersOf(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env, request) }
	return cmd
}

func (o *Options) run(ctx context.Context, env *cli.Env, request Request) error {
	if o.Pod.Named != "" { // overrides --file from the environment
		o.Source.File = ""
		if err := o.Pod.Find(ctx, env, &o.Source); err != nil {
			return err
		}
	}
	if err := o.Check(env); err != nil {
		return err
	}
	if err := o.Source.Validate(); err != nil {
		return cli.Usagef("%w", err)
	}
	resources := !o.Output.OfTable()
	var result Result
	err := o.Source.Read(ctx, request.Path, func(r io.Reader) (err error) {
		result, err = request.Read(ctx, r, resources)
		if m, ok := errors.AsType[*proxyconfig.MissingError](err); ok && m.Why != "" && o.Running() {
			err = fmt.Errorf("the answer has no %s: %w", m.What, ErrNotEnvoy)
		}
		return err
	})
	if err != nil {
		return err
	}
	if result.write != nil && !resources {
		return result.write()
	}
	none := false
	if resources {
		list := reflect.ValueOf(result.JSON)
		none = list.Kind() == reflect.Slice && list.Len() == 0
		err = output.Write(env.Stdout, o.Output, result.JSON)
	} else {
		none = len(result.Table.Rows) == 0
		err = cli.WriteTable(env, o.Output, result.Table)
	}
	if err == nil && none {
		o.noteNone(env, &result)
	}
	return err
}

// noteNone says what was looked at when nothing was found.
func (o *Options) noteNone(env *cli.Env, result *Result) {
	filters := o.filters()
	switch {
	case result.of == "":
		env.Notef("%s (%s)", result.None, &o.Source)
	case filters == "":
		env.Notef("No %ss (%s)", result.of, &o.Source)
	case result.of == endpointEntry:
		env.Notef("No endpoint of %s matches %s (%s)", output.Plural(int(o.seen), "cluster"), filters, &o.Source)
	default:
		env.Notef("None of %s matches %s (%s)", output.Plural(int(o.seen), result.of), filters, &o.Source)
	}
}

// endpointEntry is the name of an endpoint. pcOptions counts its clusters.
const endpointEntry = "endpoint"

// filtersOf returns a function for the flags that a command adds to those it has now, and that are
// given. --verbose changes only what is shown.
func filtersOf(cmd *cobra.Command) func() string {
	shared := map[string]bool{"verbose": true, "with-headers": true, "help": true}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { shared[f.Name] = true })
	return func() string {
		var given []string
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Changed && !shared[f.Name] && !f.Hidden {
				given = append(given, "--"+f.Name+" "+output.ShellWord(f.Value.String()))
			}
		})
		return strings.Join(given, " ")
	}
}

// Running reports whether the source is a running Envoy, which answers the right request.
func (o *Options) Running() bool { return o.Source.File == "" }

// ErrNotEnvoy is the error of a response that is not one of an admin interface.
var ErrNotEnvoy = errors.New("is that Envoy's admin interface?")

// PortVar defines a filter for a port. Zero means any port.
func PortVar(fs *pflag.FlagSet, p *uint32, usage string) {
	cli.NumberVar(fs, p, "port", 0, 0, 65535, usage)
}
