package clustercmd

import (
	"slices"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// rbacFlags say what the role of a reader allows.
type rbacFlags struct {
	style       string
	namespaces  []string
	credentials []string
	noCallers   bool
}

func (f *rbacFlags) bind(fs *pflag.FlagSet) {
	cli.ChoiceVar(fs, &f.style, "rbac", "", "Role of the service account", string(create.Minimal), string(create.Istio))
	fs.StringSliceVar(&f.namespaces, "namespaces", nil, "With --rbac minimal, let services be read in these `namespaces` only")
	fs.StringSliceVar(&f.credentials, "credential-namespaces", nil,
		"With --rbac minimal, let Secrets be read in these `namespaces`, for gateways to be given certificates")
	fs.BoolVar(&f.noCallers, "no-callers", false,
		"With --rbac minimal, do not let tokens of the cluster be reviewed: none of its workloads calls this control plane")
}

func (f *rbacFlags) scope() (create.Scope, error) {
	for _, namespace := range slices.Concat(f.namespaces, f.credentials) {
		if !mesh.IsDNSLabel(namespace) {
			return create.Scope{}, cli.Usagef("namespace %q is not a DNS label", namespace)
		}
	}
	if f.style == string(create.Istio) && (f.namespaces != nil || f.credentials != nil || f.noCallers) {
		return create.Scope{}, cli.Usagef("--namespaces, --credential-namespaces and --no-callers are for --rbac minimal")
	}
	return create.Scope{
		Style: create.Style(f.style), Namespaces: f.namespaces, CredentialNamespaces: f.credentials, Authenticate: !f.noCallers,
	}, nil
}

// readerAccount is the service account that reads a cluster, by Istio's name.
const readerAccount = "istio-reader-service-account"
