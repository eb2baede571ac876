package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/output"
)

// WorkloadHelp describes WORKLOAD in help texts.
const WorkloadHelp = `WORKLOAD is a pod, as name or name.namespace, or a resource that has pods, as
kind/name[.namespace]: deploy, rs, sts, ds, job, svc or gateway. --namespace is the
namespace of a name that has none.`

// OneWorkload returns the only argument of a command.
func OneWorkload(args []string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", errors.New("want one workload: " + kube.WorkloadForms)
	}
	if strings.Contains(args[0], "/") {
		_, err := kube.ParseWorkload(args[0], "default")
		return args[0], err
	}
	return args[0], nil
}

// MaybeWorkload returns the only argument of a command that works without it, too.
func MaybeWorkload(args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	return OneWorkload(args)
}

// WorkloadNamespaceVar defines --namespace of a command that takes a workload.
func (k *KubeFlags) WorkloadNamespaceVar(env *Env, cmd *cobra.Command, p *string) {
	k.NamespaceVar(env, cmd, p, "namespace", "n", "", "`Namespace` of a workload whose name has none (default the namespace of the context)")
}

// WorkloadProxy names a workload whose proxy is connected to a control plane.
type WorkloadProxy struct {
	Named, Namespace string
	// Kube and Contexts name the clusters that may have the workload.
	Kube     *KubeFlags
	Contexts []string
	// Known returns the names of the proxies that control planes know.
	Known func() ([]string, error)
}

// Find returns the name of the proxy, as name.namespace. A name without a namespace that
// no proxy has is returned as it is.
func (w *WorkloadProxy) Find(ctx context.Context, env *Env) (string, error) {
	named := w.Named
	if _, name, has := strings.Cut(named, "/"); has {
		ref, err := kube.ParseWorkload(named, cmp.Or(w.Namespace, "default"))
		if err != nil {
			return "", Usagef("%w", err)
		}
		if !ref.IsPod() {
			return w.ofOwner(ctx, env)
		}
		named = name
	}
	switch {
	case strings.Contains(named, "."):
		return named, nil
	case w.Namespace != "":
		return named + "." + w.Namespace, nil
	}
	known, err := w.Known()
	if err != nil {
		return "", err
	}
	found := slices.DeleteFunc(slices.Clone(known), func(proxy string) bool {
		return proxy[:max(0, strings.LastIndexByte(proxy, '.'))] != named
	})
	switch len(found) {
	case 0:
		return named, nil
	case 1:
		return found[0], nil
	}
	return "", Usagef("%q may be %s or %s: name one of them", named, output.Escape(found[0]), output.Escape(found[1]))
}

// ofOwner returns the proxy of a pod of an object such as a Deployment, in the only cluster in which
// one of its pods is connected. If proxies of several clusters have the same name, the control planes
// tell them apart.
func (w *WorkloadProxy) ofOwner(ctx context.Context, env *Env) (string, error) {
	clusters := make([]MeshContext, len(w.Contexts))
	for i, name := range w.Contexts {
		clusters[i].Context = name
	}
	found, err := PodsInClusters(ctx, env, w.Kube, clusters, w.Named, WorkloadPods(w.Named, w.Namespace))
	if errors.Is(err, kube.ErrNoAccess) {
		return "", Usagef("%s: %w; without a cluster, name the pod as name.namespace", w.Named, err)
	} else if err != nil {
		return "", err
	}
	known, err := w.Known()
	if err != nil {
		return "", err
	}
	var connected []*ClusterPods
	proxy, differ := "", false
	for _, f := range found {
		at := slices.IndexFunc(f.Names, func(pod string) bool { return slices.Contains(known, pod+"."+f.Namespace) })
		if at < 0 {
			continue
		}
		name := f.Names[at] + "." + f.Namespace
		differ = differ || proxy != "" && proxy != name
		connected, proxy = append(connected, f), name
	}
	if len(connected) == 0 {
		first := found[0]
		return "", fmt.Errorf("no pod of %s is connected to a control plane that was asked, such as %s.%s: does it have a sidecar?", first.Of, first.Names[0], first.Namespace)
	}
	if differ {
		_, err := OneCluster(connected, "name one of them with --context, or --cluster")
		return "", err
	}
	if one := connected[0]; len(one.Names) > 1 {
		env.Notef("%s has %d pods, this is %s", one.Of, len(one.Names), proxy)
	}
	return proxy, nil
}
