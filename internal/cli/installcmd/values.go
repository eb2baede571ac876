// Package installcmd holds the commands that install meshctl in clusters: install,
// upgrade, uninstall, manifest and check.
package installcmd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/mesh"
)

// maxValues bounds a file of values, in bytes.
const maxValues = 1 << 20

// valueFlags hold the flags for the values of an installation.
type valueFlags struct {
	files, sets []string
	ignore      bool

	namespace, revision    string
	tags                   []string
	cluster, network, mesh string
	image                  string
	crds, eastWest, istiod bool
	ingress                bool
}

func (o *valueFlags) bind(f *pflag.FlagSet) {
	f.StringArrayVarP(&o.files, "filename", "f", nil, "`File` with an IstioOperator or Helm values, - for standard input; may be repeated, a later one precedes")
	f.StringArrayVarP(&o.sets, "set", "s", nil, "A value in the spec of an IstioOperator, as `PATH=VALUE`; may be repeated, precedes files")
	f.BoolVar(&o.ignore, "ignore-unsupported", false, "Warn of values that have no effect, instead of an error")
	cli.MarkWeakening(f, "ignore-unsupported")
	f.StringVarP(&o.namespace, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the control plane")
	f.StringVarP(&o.revision, "revision", "r", "", "`Name` of a control plane beside others, which injects where istio.io/rev has the name")
	f.StringSliceVar(&o.tags, "revision-tag", nil, "Further `value` of istio.io/rev for this control plane; default takes over istio-injection=enabled; may be repeated")
	f.StringVar(&o.cluster, "cluster-id", "", "`Name` of the cluster in the mesh (default Kubernetes)")
	f.StringVar(&o.network, "network", "", "`Network` of the cluster, which becomes a label of the namespace")
	f.StringVar(&o.mesh, "mesh-id", "", "`Name` of the mesh; proxies with another MESH_ID are refused (default any)")
	f.StringVar(&o.image, "image", "", "`Image` of the control plane and of proxies (default "+defaultImage()+")")
	f.BoolVar(&o.crds, "crds", false, "Also the CustomResourceDefinitions of Istio's kinds")
	f.BoolVar(&o.eastWest, "east-west-gateway", false, "Also the gateway through which other networks call the services of this one; needs --network")
	f.BoolVar(&o.ingress, "ingress-gateway", false, "Also a gateway for callers from outside the mesh, in the namespace istio-ingress")
	f.BoolVar(&o.istiod, "expose-istiod", false, "Let other clusters use this control plane through the east-west gateway")
}

// defaultImage returns the image of this build, which make image-load gives to nodes. No
// registry serves localhost.
func defaultImage() string {
	return "localhost/meshctl:" + strings.ReplaceAll(cli.CurrentBuild().Version, "+", "-")
}

// ingressNamespace is the namespace of --ingress-gateway: gateways must not read the
// Secrets of the control plane.
const ingressNamespace = "istio-ingress"

// values returns the values of the files and the flags.
func (o *valueFlags) values(env *cli.Env, f *pflag.FlagSet) (*install.Values, error) {
	v := install.Default(defaultImage())
	var errs []error
	var unsupported []install.Place
	for _, path := range o.files {
		name, data, err := cli.ReadInput(env, path, maxValues)
		if err == nil {
			var more []install.Place
			more, err = v.Read(name, data)
			unsupported = append(unsupported, more...)
		}
		errs = append(errs, err)
	}
	for _, s := range o.sets {
		more, err := v.Set(s)
		unsupported, errs = append(unsupported, more...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	for _, p := range unsupported {
		if o.ignore {
			env.Warnf("%s has no effect", p)
		} else {
			errs = append(errs, fmt.Errorf("%s is not supported", p))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, cli.Usagef("%w\nremove these values, or ignore them with --ignore-unsupported", err)
	}
	if err := o.apply(&v, f); err != nil {
		return nil, err
	}
	if err := v.Check(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	return &v, nil
}

// apply sets the values of the flags, which precede files.
func (o *valueFlags) apply(v *install.Values, f *pflag.FlagSet) error {
	for _, t := range []struct {
		flag  string
		value string
		p     *string
	}{
		{"istioNamespace", o.namespace, &v.Namespace},
		{"revision", o.revision, &v.Revision},
		{"cluster-id", o.cluster, &v.ClusterID},
		{"network", o.network, &v.Network},
		{"mesh-id", o.mesh, &v.MeshID},
		{"image", o.image, &v.Image},
	} {
		if f.Changed(t.flag) {
			*t.p = t.value
		}
	}
	v.Tags = append(v.Tags, o.tags...)
	v.CRDs = v.CRDs || o.crds
	if o.eastWest {
		if v.Network == "" {
			return cli.Usagef("--east-west-gateway needs the network of the cluster: give --network")
		}
		v.Gateways = append(v.Gateways, install.EastWestGateway(v.Network))
		v.ExposeServices = true
	}
	if o.ingress {
		g := install.IngressGateway()
		g.Namespace = ingressNamespace
		v.Gateways = append(v.Gateways, g)
	}
	v.ExposeControlPlane = o.istiod
	return nil
}
