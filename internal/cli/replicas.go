package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/replicas"
)

// replicaFlags say which control planes a command asks.
type replicaFlags struct {
	servers []string
	kube    kubeFlags
	context string
	system  string
	token   debugToken
	named   bool // the replicas are at addresses, not those of a cluster
}

// advice is what to do about those of all replicas that have not answered, by their
// errors.
func (f *replicaFlags) advice(silent []string, all int) string {
	switch {
	case slices.ContainsFunc(silent, func(text string) bool { return strings.Contains(text, refusedToken) }):
		return "; " + needsToken
	case f.named && len(silent) == all:
		return "; --server names the --http-addr of control planes, --context the cluster that they run in"
	}
	return ""
}

func (f *replicaFlags) bind(env *Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.servers, "server", nil,
		"Debug addresses of the replicas: `host:port` or http://host:port, repeatable (default: those that the cluster of the kubeconfig has; without a kubeconfig 127.0.0.1:8080)")
	fs.StringVar(&f.context, "context", "", "Kubeconfig `context` of the cluster whose replicas are asked (default the current one)")
	f.kube.bind(fs)
	f.token.bind(fs)
	fs.StringVarP(&f.system, "istioNamespace", "i", mesh.DefaultSystemNamespace, "Namespace of the replicas")
	f.kube.contextFlags(env, cmd, "context")
}

// thisMachine is the status address of a control plane beside its user.
const thisMachine = "127.0.0.1:8080"

// find returns the replicas: those that are named, else those of the cluster. A
// request to one takes timeout at most. Close each of them.
func (f *replicaFlags) find(ctx context.Context, env *Env, timeout time.Duration) ([]*replicas.Replica, error) {
	servers := f.servers
	if !mesh.IsDNSLabel(f.system) {
		return nil, usagef("namespace %q is not a DNS label", f.system)
	}
	if len(servers) == 0 {
		access, err := kube.Load(f.kube.options(env, f.context))
		switch {
		case errors.Is(err, kube.ErrNoAccess) && f.kube.kubeconfig == "" && f.context == "":
			servers = []string{thisMachine}
		case err != nil:
			return nil, err
		default:
			found, err := replicas.Find(ctx, replicas.Options{Access: access.Config, Namespace: f.system, Tokens: f.token.tokens(env), Timeout: timeout, Now: env.Now})
			if err != nil {
				return nil, fmt.Errorf("%w; --server names replicas by address", err)
			}
			return found, nil
		}
	}
	f.named = true
	var out []*replicas.Replica
	for _, s := range servers {
		r, err := replicas.At(s, f.token.tokens(env), timeout)
		if err != nil {
			return nil, usagef("--server %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}
