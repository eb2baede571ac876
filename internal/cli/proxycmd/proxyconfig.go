// Package proxycmd holds the commands that show what proxies have: proxy-config,
// proxy-status and explain.
package proxycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func NewProxyConfig(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "proxy-config",
		Aliases: []string{"pc"},
		Short:   "Show what an Envoy is configured with",
		Long: `Show what an Envoy is configured with, in Istio's tables: endpoints, clusters,
listeners, routes, secrets, extensions, what it was started with, and all of it; and
how two Envoys differ.

POD names a pod of the kubeconfig's cluster, as name or name.namespace, or what
pods belong to, as kind/name: deploy, rs, sts, ds, job, svc or gateway; of several
pods one that is ready. Its Envoy is asked by a port-forward of the API server.

The source is otherwise the admin interface of a running Envoy (--admin) or a file
(--file, - for standard input) with a saved answer of it: /config_dump, for
endpoints /clusters?format=json, for eds and all /config_dump?include_eds. Neither
needs Kubernetes. Nothing but log --level and log --reset changes anything.`,
		Example: `  # where does the proxy send requests for helloworld?
  meshctl pc endpoints web-1.apps --cluster "outbound|5000||helloworld.sample.svc.cluster.local"
  meshctl pc endpoints deploy/web -n apps --context kind-cluster1

  # of an Envoy without Kubernetes
  meshctl pc clusters --admin 127.0.0.1:15000

  # work on a saved dump
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

// envoyFlags say where a dump of an Envoy is read.
type envoyFlags struct {
	source fetch.Source
	maxMiB int64
}

func (f *envoyFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.source.Admin, "admin", "", "Admin interface of a running Envoy: `host:port` or http://host:port")
	fs.StringVarP(&f.source.File, "file", "f", "", "Saved dump, a `path` or - for standard input")
	cli.Rivals(fs, "admin", "file")
	maxDumpVar(fs, &f.maxMiB)
}

// check checks the flags; an Envoy that neither names is no error of theirs.
func (f *envoyFlags) check(env *cli.Env) error {
	if f.source.Admin != "" || f.source.File != "" {
		if err := f.source.Validate(); err != nil {
			return cli.Usagef("%w", err)
		}
	}
	f.source.Stdin = env.Stdin
	var err error
	f.source.MaxSize, err = maxDump(f.maxMiB)
	return err
}

// maxDumpVar binds the bound on a dump, in MiB.
func maxDumpVar(fs *pflag.FlagSet, mib *int64) {
	fs.Int64Var(mib, "max-size", 1024, "Largest dump that is read, in `MiB`")
}

// maxDump is the bound of maxDumpVar in bytes.
func maxDump(mib int64) (int64, error) {
	if mib <= 0 || mib > 1<<20 {
		return 0, cli.Usagef("--max-size %d is not between 1 and %d MiB", mib, 1<<20)
	}
	return mib << 20, nil
}

// pcOptions are the flags that all proxy-config commands have.
type pcOptions struct {
	envoyFlags
	pod    podFlags
	output output.Format
}

func (o *pcOptions) bind(env *cli.Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	o.envoyFlags.bind(fs)
	o.pod.bind(env, cmd)
	cli.TableVar(fs, &o.output)
	cli.DurationVar(fs, &o.source.Timeout, "timeout", 30*time.Second, "Longest time to get and read the whole answer of the admin interface")
}

// pcResult is what a command has read.
type pcResult struct {
	table *output.Table
	none  string // what to say of a table without rows
	json  any
	// write writes what is more than a table, instead of it.
	write func() error
}

// show reads from the source and writes the result. read gets whether
// resources are wanted, for JSON, or rows.
func (o *pcOptions) show(ctx context.Context, env *cli.Env, request fetch.Request, read func(r io.Reader, resources bool) (pcResult, error)) error {
	if o.pod.named != "" { // which counts more than an Envoy of the environment
		o.source.File = ""
		if err := o.pod.find(ctx, env, &o.source); err != nil {
			return err
		}
	}
	if err := o.check(env); err != nil {
		return err
	}
	if err := o.source.Validate(); err != nil {
		return cli.Usagef("%w", err)
	}
	resources := !o.output.OfTable()
	var result pcResult
	err := o.source.Read(ctx, request, func(r io.Reader) (err error) {
		result, err = read(r, resources)
		if m, ok := errors.AsType[*proxyconfig.MissingError](err); ok && m.Why != "" && o.running() {
			err = fmt.Errorf("the answer has no %s: %w", m.What, errNotEnvoy)
		}
		return err
	})
	if err != nil {
		return err
	}
	if resources {
		return output.Write(env.Stdout, o.output, result.json)
	}
	if result.write != nil {
		return result.write()
	}
	if err := cli.WriteTable(env, o.output, result.table); err != nil {
		return err
	}
	if len(result.table.Rows) == 0 {
		fmt.Fprintln(env.Stderr, result.none)
	}
	return nil
}

// running reports whether a running Envoy is asked, so that the request is as it
// should be.
func (o *pcOptions) running() bool { return o.source.File == "" }

var errNotEnvoy = errors.New("is that Envoy's admin interface?")

// portVar binds a filter for a port; 0 stands for every port.
func portVar(fs *pflag.FlagSet, p *uint32, usage string) {
	fs.Var((*portValue)(p), "port", usage)
}

type portValue uint32

func (p *portValue) Set(s string) error {
	var port uint16
	if _, err := fmt.Sscanf(s, "%d", &port); err != nil || fmt.Sprint(port) != s {
		return errors.New("want a number from 0 to 65535")
	}
	*p = portValue(port)
	return nil
}

func (p *portValue) Type() string   { return "port" }
func (p *portValue) String() string { return fmt.Sprint(uint32(*p)) }
