package proxycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	p.kube.NamespaceVar(env, cmd, &p.namespace, "namespace", "n", "", "`Namespace` of the pod if the argument contains none (default the namespace of the context)")
	fs.Uint16Var(&p.port, "proxy-admin-port", mesh.PortEnvoyAdmin, "`Port` of Envoy's admin interface in the pod")
	cmd.ValidArgsFunction = cli.CompleteNames(env, p.complete)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 || len(args) == 1 && args[0] == "" {
			return errors.New("want one pod, as [kind/]name[.namespace]")
		}
		p.named = strings.Join(args, "")
		for _, name := range podFlagNames() {
			if !p.given() && cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s is for a pod: name it as [kind/]name[.namespace]", name)
			}
		}
		for _, name := range []string{"admin", "file", "selector"} {
			if p.named != "" && cmd.Flags().Changed(name) {
				return fmt.Errorf("give one source: either pod %s or --%s", p.named, name)
			}
		}
		return nil
	}
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
	finder, err := kube.NewPodFinder(access.Config)
	if err != nil {
		return "", nil, err
	}
	defer finder.Close()
	var names []string
	if p.named == "" {
		selector, bad := kube.ParseSelector(p.selector)
		if bad != nil {
			return "", nil, cli.Usagef("--selector %q: %w", p.selector, bad)
		}
		of = p.selector
		names, err = finder.Select(ctx, namespace, selector)
	} else {
		ref, bad := kube.ParseWorkload(p.named, namespace)
		if bad != nil {
			return "", nil, cli.Usagef("%w", bad)
		}
		of, namespace = ref.String(), ref.Namespace
		names, err = finder.Pods(ctx, ref)
	}
	for _, name := range names {
		pods = append(pods, kube.PodPort{Access: access.Config, Namespace: namespace, Name: name, Port: p.port})
	}
	return of, pods, err
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
