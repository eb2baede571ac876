package pccmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcLogOptions struct {
	pod     podFlags
	admin   string
	timeout time.Duration
	output  output.Format
	level   string
	reset   bool
	set     func(flag string) bool // reports whether a flag has a value, also an empty one
}

func newPCLogCmd(env *cli.Env) *cobra.Command {
	var o pcLogOptions
	cmd := &cobra.Command{
		Use:     "log [WORKLOAD]",
		Aliases: []string{"o"},
		Short:   "Show or change the log levels of Envoys",
		Long: `Show or change the log levels of an Envoy, of the Envoys of a workload such as
deploy/web, or of the Envoys in all pods with the labels of --selector. If --context or
--all-clusters names several clusters, these are the pods of all of them.

--level LEVEL sets the level of all loggers. --level LOGGER:LEVEL sets the level of one
logger. Separate several values by commas. Levels are trace, debug, info, warning,
error, critical and off. --reset sets the levels with which each Envoy was started.

If an Envoy lacks one of the loggers, the command changes none of its levels.`,
		Example: `  meshctl pc log web-1.apps
  # Log why requests fail
  meshctl pc log deploy/web -n apps --level http:debug,router:debug
  meshctl pc log deploy/web -n apps --reset
  meshctl pc log -l app=web -n apps --level warning
  meshctl pc log --admin 127.0.0.1:15000 --level upstream:trace`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	o.set = f.Changed
	o.pod.Bind(env, cmd)
	f.StringVarP(&o.pod.selector, "selector", "l", "", "All running pods of the namespace with these `labels`")
	f.StringVar(&o.admin, "admin", "", "Admin interface of a running Envoy: `host:port` or http://host:port")
	f.StringVar(&o.level, "level", "", "`Levels` to set: level, logger:level, …")
	f.BoolVarP(&o.reset, "reset", "r", false, "Set the levels with which each Envoy was started")
	cli.TextVar(f, &o.output)
	cli.DurationVar(f, &o.timeout, "timeout", 30*time.Second, "Longest wait for each answer of an Envoy")
	for _, one := range [][]string{{"level", "reset"}, {"selector", "admin"}} {
		cmd.MarkFlagsMutuallyExclusive(one...)
		cli.Rivals(f, one...)
	}
	return cmd
}

// maxLoggers bounds the response of an Envoy about its loggers, in bytes.
const maxLoggers = 1 << 20

// loggersOf holds the loggers of one Envoy.
type loggersOf struct {
	Envoy   string            `json:"envoy"` // name.namespace of its pod, with the context of several, or its address
	Loggers map[string]string `json:"loggers,omitzero"`
	Error   string            `json:"error,omitzero"` // of the request or the change
}

func (o *pcLogOptions) run(ctx context.Context, env *cli.Env) error {
	var levels *proxyconfig.LogLevels
	if o.set("level") {
		parsed, err := proxyconfig.ParseLogLevels(o.level)
		if err != nil {
			return cli.Usagef("--level: %w", err)
		}
		levels = &parsed
	}
	sources, err := o.sources(ctx, env)
	if err != nil {
		return err
	}
	var all []loggersOf
	var failed []error
	err = o.askAll(ctx, sources, levels, func(name string, loggers map[string]string, err error) error {
		one := loggersOf{Envoy: name, Loggers: loggers}
		switch {
		case err != nil:
			one.Error = err.Error()
			failed = append(failed, err)
			if len(sources) > 1 { // other Envoys may take a while
				env.Notef("%v", err)
			}
		case o.output.OfTable():
			if err := writeLoggers(env.Stdout, one); err != nil {
				return err
			}
		}
		all = append(all, one)
		return nil
	})
	if err != nil {
		return err
	}
	if !o.output.OfTable() {
		if err := output.Write(env.Stdout, o.output, all); err != nil {
			return err
		}
	}
	if len(failed) > 0 && len(sources) > 1 {
		return fmt.Errorf("%d of %d Envoys failed, see above", len(failed), len(sources))
	}
	return errors.Join(failed...)
}

// loggersAtOnce bounds the number of concurrent requests.
const loggersAtOnce = 8

// askAll changes the levels of the Envoys, several at the same time. It calls each with
// the result of every Envoy, in their order, as soon as it is known.
func (o *pcLogOptions) askAll(ctx context.Context, sources []namedSource, levels *proxyconfig.LogLevels, each func(name string, loggers map[string]string, err error) error) error {
	type answer struct {
		loggers map[string]string
		err     error
	}
	answers := make([]chan answer, len(sources))
	for i := range answers {
		answers[i] = make(chan answer, 1)
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range min(loggersAtOnce, len(sources)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(sources)); i = next.Add(1) - 1 {
				loggers, err := o.change(ctx, sources[i].source, levels)
				answers[i] <- answer{loggers, err}
			}
		})
	}
	for i, s := range sources {
		a := <-answers[i]
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := each(s.name, a.loggers, a.err); err != nil {
			return err
		}
	}
	return nil
}

// namedSource is an Envoy with its name.
type namedSource struct {
	name   string
	source *fetch.Source
}

func (o *pcLogOptions) sources(ctx context.Context, env *cli.Env) ([]namedSource, error) {
	source := fetch.Source{Admin: o.admin, Timeout: o.timeout, MaxSize: maxLoggers, FixedSize: true}
	if !o.pod.given() {
		if o.admin == "" {
			return nil, cli.Usagef("want one workload: %s; or give --selector or --admin host:port", kube.WorkloadForms)
		}
		if err := source.Validate(); err != nil {
			return nil, cli.Usagef("%w", err)
		}
		return []namedSource{{o.admin, &source}}, nil
	}
	targets, err := o.pod.targets(ctx, env)
	if err != nil {
		return nil, err
	}
	out := make([]namedSource, len(targets))
	for i, target := range targets {
		own := source
		ReadInPod(&own, target.PodPort)
		out[i] = namedSource{target.name(), &own}
	}
	return out, nil
}

// change changes the levels of one Envoy and returns its loggers.
func (o *pcLogOptions) change(ctx context.Context, source *fetch.Source, levels *proxyconfig.LogLevels) (loggers map[string]string, err error) {
	ask := func(request fetch.Request) error {
		return source.Post(ctx, request, func(r io.Reader) (err error) {
			loggers, err = proxyconfig.ReadLoggers(r)
			return err
		})
	}
	if o.reset {
		err := source.Read(ctx, fetch.ServerInfo, func(r io.Reader) error {
			start, err := proxyconfig.ReadStartLevels(r)
			levels = &start
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if err := ask(fetch.Loggers("", nil)); err != nil || levels == nil {
		return loggers, err
	}
	if err := levels.Check(loggers); err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	if levels.All != "" {
		if err := ask(fetch.Loggers(levels.All, nil)); err != nil {
			return nil, err
		}
	}
	if len(levels.Of) > 0 {
		if err := ask(fetch.Loggers("", levels.Of)); err != nil {
			return nil, err
		}
	}
	return loggers, nil
}

// writeLoggers prints loggers in the format of istioctl.
func writeLoggers(w io.Writer, of loggersOf) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s:\nactive loggers:\n", output.Escape(of.Envoy))
	for _, logger := range slices.Sorted(maps.Keys(of.Loggers)) {
		fmt.Fprintf(&text, "  %s: %s\n", output.Escape(logger), of.Loggers[logger])
	}
	_, err := io.WriteString(w, text.String()+"\n")
	return err
}
