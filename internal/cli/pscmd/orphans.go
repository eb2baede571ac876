package pscmd

import (
	"context"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/replicas"
)

// orphans returns a line for each cluster in which proxies or namespaces have no control plane. It
// leaves out clusters that the user may not read: the connected proxies are the subject of the command.
func (o *Options) orphans(ctx context.Context, env *cli.Env, found []*replicas.Replica) []string {
	if len(o.Servers)+len(o.xds.addresses) > 0 {
		return nil
	}
	var out, running []string
	for _, r := range found {
		if r.Identity.Revision != "" {
			running = append(running, r.Identity.Revision)
		}
	}
	contexts := o.ContextsOf(found)
	for _, name := range contexts {
		access, err := kube.Load(o.Kube.Options(env, name))
		if err != nil {
			continue // find says so
		}
		api, err := kube.NewClient(access.Config)
		if err != nil {
			continue
		}
		left, err := (&apply.Cluster{Name: name, API: api}).Orphans(ctx, running)
		api.Close()
		if err != nil || len(left) == 0 {
			continue
		}
		line := "without a control plane: " + strings.Join(left, ", ")
		if len(contexts) > 1 {
			line = name + ": " + line
		}
		check := "meshctl check"
		if flags := o.Kube.CommandFlags(name); flags != "" {
			check += " " + flags
		}
		out = append(out, line+"; what to do shows: "+check)
	}
	return out
}

func (o *Options) noteOrphans(env *cli.Env, lines []string) {
	for _, line := range lines {
		env.Notef("%s", line)
	}
}
