package proxycmd

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

// podFlags hold the flags for the pod of an Envoy.
type podFlags struct {
	named     string // the argument, empty without one
	kube      cli.KubeFlags
	context   string
	namespace string
	port      uint16
	selector  string // labels instead of a name, for commands with --selector
}

// podFlagNames lists the flags that need a pod.
func podFlagNames() []string {
	return []string{"context", "kubeconfig", "namespace", "proxy-admin-port", "as", "as-group"}
}

// given reports whether the flags name pods.
func (p *podFlags) given() bool { return p.named != "" || p.selector != "" }

func (p *podFlags) bind(env *cli.Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	p.kube.ContextVar(env, cmd, &p.context, "context", "Kubeconfig `context` of the cluster of the pod (default the current one)")
	p.kube.Bind(fs)
	p.kube.WorkloadNamespaceVar(env, cmd, &p.namespace)
	fs.Uint16Var(&p.port, "proxy-admin-port", mesh.PortEnvoyAdmin, "`Port` of Envoy's admin interface in the pod")
	cmd.ValidArgsFunction = cli.CompleteNames(env, p.complete)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := notInPod(cmd, args); err != nil {
			return err
		}
		var err error
		if p.named, err = cli.MaybeWorkload(args); err != nil {
			return err
		}
		for _, name := range podFlagNames() {
			if !p.given() && cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s is for a workload: name it as %s", name, kube.WorkloadForms)
			}
		}
		for _, name := range []string{"admin", "file", "selector"} {
			if p.named != "" && cmd.Flags().Changed(name) {
				return fmt.Errorf("give one source: either workload %s or --%s", p.named, name)
			}
		}
		return nil
	}
}

// notInPod refuses an argument that names a file or an admin interface instead of a workload, if flags
// of the command name these.
func notInPod(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return nil
	}
	named := args[0]
	_, port, err := net.SplitHostPort(named)
	if _, bad := strconv.ParseUint(port, 10, 16); err == nil && bad == nil && cmd.Flags().Lookup("admin") != nil {
		return fmt.Errorf("%s is an address: want --admin %[1]s", named)
	}
	if cmd.Flags().Lookup("file") == nil {
		return nil
	}
	_, bad := kube.ParseWorkload(named, "default")
	if info, err := os.Stat(named); err == nil && info.Mode().IsRegular() && (bad != nil || strings.HasSuffix(named, ".json")) {
		return fmt.Errorf("%s is a file: want --file %[1]s", named)
	}
	return nil
}

// find sets the source to the Envoy of the pod, or of one of several pods.
func (p *podFlags) find(ctx context.Context, env *cli.Env, source *fetch.Source) error {
	target, err := p.target(ctx, env)
	if err == nil {
		readInPod(source, target)
	}
	return err
}

// target returns the admin interface of the pod, or of one of several pods.
func (p *podFlags) target(ctx context.Context, env *cli.Env) (kube.PodPort, error) {
	of, pods, err := p.targets(ctx, env)
	if err != nil {
		return kube.PodPort{}, err
	}
	if len(pods) > 1 {
		env.Notef("%s has %d pods, this is %s.%s", of, len(pods), pods[0].Name, pods[0].Namespace)
	}
	return pods[0], nil
}

// targets returns the admin interfaces of the pods, at least one, ready pods first, and
// the name of their owner.
func (p *podFlags) targets(ctx context.Context, env *cli.Env) (of string, pods []kube.PodPort, err error) {
	access, namespace, err := p.access(env)
	if err != nil {
		return "", nil, err
	}
	var names []string
	if p.named == "" {
		of = p.selector
		names, err = p.selected(ctx, access, namespace)
	} else {
		var ref kube.Workload
		ref, names, err = cli.WorkloadPods(ctx, access, p.named, p.namespace)
		of, namespace = ref.String(), ref.Namespace
	}
	for _, name := range names {
		pods = append(pods, kube.PodPort{Access: access.Config, Namespace: namespace, Name: name, Port: p.port})
	}
	return of, pods, err
}

// selected returns the names of the pods that --selector selects.
func (p *podFlags) selected(ctx context.Context, access *kube.Access, namespace string) ([]string, error) {
	selector, err := kube.ParseSelector(p.selector)
	if err != nil {
		return nil, cli.Usagef("--selector %q: %w", p.selector, err)
	}
	finder, err := kube.NewPodFinder(access.Config)
	if err != nil {
		return nil, err
	}
	defer finder.Close()
	return finder.Select(ctx, namespace, selector)
}

// access returns the access to the cluster of the pod and the default namespace.
func (p *podFlags) access(env *cli.Env) (access *kube.Access, namespace string, err error) {
	if access, err = kube.Load(p.kube.Options(env, p.context)); err != nil {
		return nil, "", err
	}
	return access, cmp.Or(p.namespace, access.Namespace, "default"), nil
}

// complete returns the names of the running pods in the namespace.
func (p *podFlags) complete(ctx context.Context, env *cli.Env) ([]string, error) {
	access, namespace, err := p.access(env)
	if err != nil {
		return nil, err
	}
	finder, err := kube.NewPodFinder(access.Config)
	if err != nil {
		return nil, err
	}
	defer finder.Close()
	return finder.Names(ctx, namespace)
}

// readInPod sets the source to the admin interface at a port of a pod.
func readInPod(source *fetch.Source, target kube.PodPort) {
	source.Admin = fmt.Sprintf("localhost:%d", target.Port)
	source.Dial, source.Via = target.DialContext, "port-forward to "+target.String()
}
