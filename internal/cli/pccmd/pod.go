package pccmd

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
	Named     string // the argument, empty without one
	kube      cli.KubeFlags
	contexts  cli.MeshContexts
	system    string // namespace of the remote secrets
	Namespace string
	port      uint16
	selector  string // labels instead of a name, for commands with --selector
	pair      bool   // it is one of two Envoys, of which --context-b may name the second
	other     bool   // --context-b is given
}

// podFlagNames lists the flags that need a pod.
func podFlagNames() []string {
	return []string{"context", "all-clusters", "istioNamespace", "kubeconfig", "namespace", "proxy-admin-port", "as", "as-group"}
}

// given reports whether the flags name pods.
func (p *podFlags) given() bool { return p.Named != "" || p.selector != "" }

func (p *podFlags) Bind(env *cli.Env, cmd *cobra.Command) {
	p.bindClusters(env, cmd)
	cmd.ValidArgsFunction = cli.CompleteNames(env, p.complete)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := notInPod(cmd, args); err != nil {
			return err
		}
		var err error
		if p.Named, err = cli.MaybeWorkload(args); err != nil {
			return err
		}
		for _, name := range podFlagNames() {
			if !p.given() && cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s is for a workload: name it as %s", name, kube.WorkloadForms)
			}
		}
		for _, name := range []string{"admin", "file", "selector"} {
			if p.Named != "" && cmd.Flags().Changed(name) {
				return fmt.Errorf("give one source: either workload %s or --%s", p.Named, name)
			}
		}
		return nil
	}
}

// bindClusters defines the flags for the clusters of pods.
func (p *podFlags) bindClusters(env *cli.Env, cmd *cobra.Command) {
	p.contexts.Bind(env, cmd, &p.kube, " that may have the workload")
	p.kube.Bind(cmd.Flags())
	p.kube.NamespaceVar(env, cmd, &p.system, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the remote secrets, for --all-clusters")
	p.kube.WorkloadNamespaceVar(env, cmd, &p.Namespace)
	cmd.Flags().Uint16Var(&p.port, "proxy-admin-port", mesh.PortEnvoyAdmin, "`Port` of Envoy's admin interface in the pod")
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

// Find sets the source to the Envoy of the pod, or of one of several pods.
func (p *podFlags) Find(ctx context.Context, env *cli.Env, source *fetch.Source) error {
	target, err := p.target(ctx, env)
	if err == nil {
		ReadInPod(source, target.PodPort)
	}
	return err
}

// podTarget is the admin interface of a pod.
type podTarget struct {
	kube.PodPort
	context string // of its cluster, empty if the flags name no other
}

// name returns name.namespace of the pod, with the context if the flags name several ones.
func (t *podTarget) name() string {
	name := t.Name + "." + t.Namespace
	if t.context != "" {
		name += " of " + t.context
	}
	return name
}

// target returns the admin interface of the pod, or of one of several pods. Only one cluster may have
// the workload.
func (p *podFlags) target(ctx context.Context, env *cli.Env) (podTarget, error) {
	found, several, err := p.clusters(ctx, env)
	if err != nil {
		return podTarget{}, err
	}
	fix := "name one of them with --context"
	if p.pair {
		fix = "name that of A with --context and that of B with --context-b"
	}
	one, err := cli.OneCluster(found, fix)
	if err != nil {
		return podTarget{}, err
	}
	target := p.targetsIn(one, several)[0]
	switch {
	case len(one.Names) > 1:
		env.Notef("%s has %d pods, this is %s", one.Of, len(one.Names), target.name())
	case several:
		env.Notef("This is %s", target.name())
	}
	return target, nil
}

// targets returns the admin interfaces of the pods in all clusters, at least one, ready pods of a
// cluster first.
func (p *podFlags) targets(ctx context.Context, env *cli.Env) ([]podTarget, error) {
	found, several, err := p.clusters(ctx, env)
	var out []podTarget
	for _, f := range found {
		out = append(out, p.targetsIn(f, several)...)
	}
	return out, err
}

func (p *podFlags) targetsIn(f *cli.ClusterPods, several bool) []podTarget {
	var out []podTarget
	for _, name := range f.Names {
		t := podTarget{PodPort: kube.PodPort{Access: f.Access.Config, Namespace: f.Namespace, Name: name, Port: p.port}}
		if several || p.other {
			t.context = f.Access.Context
		}
		out = append(out, t)
	}
	return out
}

// clusters returns the pods in each cluster that has some, and whether the flags name several clusters.
func (p *podFlags) clusters(ctx context.Context, env *cli.Env) (found []*cli.ClusterPods, several bool, err error) {
	of, find := p.Named, cli.WorkloadPods(p.Named, p.Namespace)
	if p.Named == "" {
		of = p.selector
		if find, err = p.selected(); err != nil {
			return nil, false, err
		}
	}
	clusters, err := p.contexts.Resolve(ctx, env, &p.kube, p.system)
	if err != nil {
		return nil, false, err
	}
	found, err = cli.PodsInClusters(ctx, env, &p.kube, clusters, of, find)
	return found, len(clusters) > 1, err
}

// selected finds the pods that --selector selects.
func (p *podFlags) selected() (cli.FindPods, error) {
	selector, err := kube.ParseSelector(p.selector)
	if err != nil {
		return nil, cli.Usagef("--selector %q: %w", p.selector, err)
	}
	return func(ctx context.Context, finder *kube.PodFinder, access *kube.Access) (*cli.ClusterPods, error) {
		namespace := p.defaultNamespace(access)
		names, err := finder.Select(ctx, namespace, selector)
		return &cli.ClusterPods{Of: p.selector, Access: access, Namespace: namespace, Names: names}, err
	}, nil
}

func (p *podFlags) defaultNamespace(access *kube.Access) string {
	return cmp.Or(p.Namespace, access.Namespace, "default")
}

// complete returns the names of the running pods in the namespace.
func (p *podFlags) complete(ctx context.Context, env *cli.Env) ([]string, error) {
	clusters, err := p.contexts.Resolve(ctx, env, &p.kube, p.system)
	if err != nil {
		return nil, err
	}
	found, err := cli.PodsInClusters(ctx, env, &p.kube, clusters, "pods", func(ctx context.Context, finder *kube.PodFinder, access *kube.Access) (*cli.ClusterPods, error) {
		names, err := finder.Names(ctx, p.defaultNamespace(access))
		return &cli.ClusterPods{Names: names}, err
	})
	var out []string
	for _, f := range found {
		out = append(out, f.Names...)
	}
	return out, err
}

// ReadInPod sets the source to the admin interface at a port of a pod.
func ReadInPod(source *fetch.Source, target kube.PodPort) {
	source.Admin = fmt.Sprintf("localhost:%d", target.Port)
	source.Dial, source.Via, source.Absent = target.DialContext, "port-forward to "+target.String(), target.WithoutSidecar
}
