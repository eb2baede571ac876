package cli

import (
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/kube"
)

// kubeFlags say how a command gets at API servers.
type kubeFlags struct {
	kubeconfig string
	as         string
	asGroups   []string
}

func (k *kubeFlags) bind(fs *pflag.FlagSet) {
	fs.StringVarP(&k.kubeconfig, "kubeconfig", "c", "",
		"Kubeconfig `file` (default $KUBECONFIG, else ~/.kube/config, else the pod's own access)")
	fs.StringVar(&k.as, "as", "", "Act as this `user` of the API server")
	fs.StringArrayVar(&k.asGroups, "as-group", nil, "Act as a member of this `group`; may be repeated")
}

func (k *kubeFlags) options(env *Env, context string) kube.Options {
	return kube.Options{
		Kubeconfig: k.kubeconfig, Context: context, As: k.as, AsGroups: k.asGroups,
		Timeout: kube.RequestTimeout, UserAgent: "meshctl/" + currentBuild().Version, LookupEnv: env.LookupEnv,
	}
}
