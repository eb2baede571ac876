package pccmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

// Prefixes of Envoys that are not in pods.
const (
	inFile  = "file:"
	atAdmin = "http://"
)

// pairHelp describes the arguments of commands that compare two Envoys.
const pairHelp = `A and B are each a workload, such as web-1.apps or deploy/web (see meshctl pc --help), the admin
interface of a running Envoy, as http://host:port, or a saved response of /config_dump,
as file:PATH. One of them may be file:- for standard input. --context names the cluster
of both pods, or several clusters, of which one has the workload. If B is in another
cluster, --context-b names that cluster.`

// pairOptions hold the flags of commands that compare two Envoys.
type pairOptions struct {
	named    [2]string // the arguments
	pod      podFlags  // of both, except the name
	contextB string
	maxMiB   int64
	timeout  time.Duration
	output   output.Format
}

func (o *pairOptions) bind(env *cli.Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	o.pod.bindClusters(env, cmd)
	o.pod.kube.ContextVar(env, cmd, &o.contextB, "context-b", "Kubeconfig `context` of the cluster of pod B (default the value of --context)")
	maxDumpVar(fs, &o.maxMiB)
	cli.TextVar(fs, &o.output)
	cli.DurationVar(fs, &o.timeout, "timeout", 30*time.Second, "Longest wait for the answer of each admin interface")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 1 || strings.HasPrefix(typed, inFile) || strings.HasPrefix(typed, atAdmin) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ask := func(ctx context.Context, env *cli.Env) ([]string, error) {
			pod := o.podOf(len(args))
			return pod.complete(ctx, env)
		}
		return cli.CompleteNames(env, ask)(cmd, nil, typed)
	}
}

// podOf returns the flags of a pod, 0 for A or 1 for B.
func (o *pairOptions) podOf(i int) podFlags {
	pod := o.pod
	pod.Named, pod.pair, pod.other = o.named[i], true, o.contextB != ""
	if i == 1 && o.contextB != "" {
		pod.contexts = cli.MeshContexts{Names: []string{o.contextB}}
	}
	return pod
}

// isPod reports whether an argument names a pod.
func isPod(named string) bool {
	return !strings.HasPrefix(named, inFile) && !strings.HasPrefix(named, atAdmin)
}

// take checks and keeps the arguments.
func (o *pairOptions) take(cmd *cobra.Command, args []string) error {
	if len(args) != len(o.named) {
		return errors.New("want two Envoys, A and B: each a workload as " + kube.WorkloadForms + ", or http://host:port, or file:PATH")
	}
	copy(o.named[:], args)
	if args[0] == inFile+"-" && args[0] == args[1] {
		return errors.New("standard input can be one of the two only")
	}
	for _, name := range podFlagNames() {
		if !isPod(args[0]) && !isPod(args[1]) && cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s is for pods, and neither %s nor %s is one", name, args[0], args[1])
		}
	}
	if !isPod(args[1]) && cmd.Flags().Changed("context-b") {
		return fmt.Errorf("--context-b is for a pod, and %s is none", args[1])
	}
	return nil
}

// envoySide is one of the two Envoys.
type envoySide struct {
	Name   string `json:"name"`   // short: name.namespace of a pod, a path or an address
	Source string `json:"source"` // where its configuration is read, for people
	source fetch.Source
}

// find returns the sources of both Envoys.
func (o *pairOptions) find(ctx context.Context, env *cli.Env) (both [2]*envoySide, err error) {
	for i := range both { // check both names before any request
		if both[i], err = o.envoySide(env, i); err != nil {
			return both, cli.Usagef("%w", err)
		}
	}
	for i, side := range both {
		if isPod(o.named[i]) {
			if err := o.findPod(ctx, env, i, side); err != nil {
				return both, err
			}
		}
		side.Source = side.source.String()
	}
	return both, nil
}

// envoySide returns the Envoy of an argument. The source of a pod is still empty.
func (o *pairOptions) envoySide(env *cli.Env, i int) (*envoySide, error) {
	side := &envoySide{source: fetch.Source{Timeout: o.timeout, MaxSize: o.maxMiB << 20, Stdin: env.Stdin}}
	named := o.named[i]
	if path, ok := strings.CutPrefix(named, inFile); ok {
		if path == "" {
			return nil, fmt.Errorf("%s has no path: want file:PATH, or file:- for standard input", named)
		}
		side.source.File = path
		side.Name = side.source.String()
		return side, nil
	}
	if strings.HasPrefix(named, atAdmin) {
		side.source.Admin = named
		side.Name = strings.TrimSuffix(strings.TrimPrefix(named, atAdmin), "/")
		return side, side.source.Validate()
	}
	return side, checkPod(named)
}

// checkPod checks the name of a pod, which may be a mistyped file or address.
func checkPod(named string) error {
	if _, port, err := net.SplitHostPort(named); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return fmt.Errorf("%s is an address: use %s%[1]s for the admin interface there", named, atAdmin)
		}
	}
	if strings.Contains(named, "://") {
		return fmt.Errorf("%s is not the address of an admin interface: want http://host:port", named)
	}
	_, bad := kube.ParseWorkload(named, "default")
	_, _, kind := strings.Cut(named, "/")
	switch info, err := os.Stat(named); {
	case err != nil || !info.Mode().IsRegular():
	case bad == nil && !kind:
		return fmt.Errorf("%s is a file here: use file:%[1]s for the file, pod/%[1]s for a pod", named)
	case bad != nil || strings.HasSuffix(named, ".json"): // no deployment in a namespace of that name
		return fmt.Errorf("%s is a file: use %s%[1]s", named, inFile)
	}
	if bad != nil {
		return fmt.Errorf("%w; an Envoy that is not in a pod is file:PATH or http://host:port", bad)
	}
	return nil
}

func (o *pairOptions) findPod(ctx context.Context, env *cli.Env, i int, side *envoySide) error {
	pod := o.podOf(i)
	target, err := pod.target(ctx, env)
	if err != nil {
		if i == 1 && o.contextB == "" && isPod(o.named[0]) {
			return fmt.Errorf("%w; if B is in another cluster, name it with --context-b", err)
		}
		return err
	}
	ReadInPod(&side.source, target.PodPort)
	side.Name = target.name()
	return nil
}

// readBoth reads both Envoys at the same time. If one fails it does not wait for the
// other.
func readBoth[T any](ctx context.Context, both [2]*envoySide, request fetch.Request, read func(io.Reader) (T, error)) ([2]T, error) {
	var out [2]T
	group, ctx := errgroup.WithContext(ctx)
	for i, side := range both {
		group.Go(func() error {
			return side.source.Read(ctx, request, func(r io.Reader) (err error) {
				out[i], err = read(r)
				return err
			})
		})
	}
	err := group.Wait()
	return out, err
}
