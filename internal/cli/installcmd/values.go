// Package installcmd holds the commands that install meshctl in clusters: install,
// upgrade, uninstall, manifest and check.
package installcmd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// maxValues bounds a file of values, in bytes.
const maxValues = 1 << 20

// valueFlags hold the flags for the values of an installation.
type valueFlags struct {
	files, sets []string
	ignore      bool
	remembered  *pflag.FlagSet // the flags that an upgrade need not repeat

	namespace, revision    string
	tags                   []string
	cluster, network, mesh string
	image                  string
	crds, eastWest, istiod bool
	ingress, egress        bool
	controlPlane           string
	configCluster          string
}

func (o *valueFlags) bind(f *pflag.FlagSet) {
	f.StringArrayVarP(&o.files, "file", "f", nil, "`File` with an IstioOperator or Helm values, - for standard input; may be repeated, a later file overrides earlier ones")
	cli.Rename(f, "file", "filename")
	f.StringArrayVarP(&o.sets, "set", "s", nil, "A value in the spec of an IstioOperator, as `PATH=VALUE`; may be repeated, overrides files")
	f.StringVarP(&o.namespace, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the control plane")
	o.remembered = pflag.NewFlagSet("", pflag.ContinueOnError)
	o.bindRemembered(o.remembered)
	f.AddFlagSet(o.remembered)
}

// bindRemembered binds the flags of which the installation keeps the values.
func (o *valueFlags) bindRemembered(f *pflag.FlagSet) {
	f.BoolVar(&o.ignore, "ignore-unsupported", false, "Warn of values that have no effect, instead of an error")
	cli.MarkWeakening(f, "ignore-unsupported")
	f.StringVarP(&o.revision, "revision", "r", "", "`Name` of the revision, to run several control planes in a cluster; this control plane injects pods with this value of istio.io/rev")
	f.StringSliceVar(&o.tags, "revision-tag", nil, "Further `value` of istio.io/rev for this control plane; with the value default it also injects pods of namespaces with istio-injection=enabled; may be repeated")
	f.StringVar(&o.cluster, "cluster-id", "", "`Name` of the cluster in the mesh (default Kubernetes)")
	f.StringVar(&o.network, "network", "", "`Network` of the cluster, for the label topology.istio.io/network of the namespace")
	f.StringVar(&o.mesh, "mesh-id", "", "`Name` of the mesh; proxies with another MESH_ID are refused (default any)")
	f.StringVar(&o.image, "image", "", "`Image` of the control plane and of proxies (default localhost/meshctl:VERSION of this program)")
	f.BoolVar(&o.crds, "crds", false, "Include the CustomResourceDefinitions of Istio's kinds")
	f.BoolVar(&o.eastWest, "east-west-gateway", false, "Include the gateway through which other networks call the services of this network; needs --network")
	f.BoolVar(&o.ingress, "ingress-gateway", false, "Include a gateway for callers from outside the mesh, in the namespace istio-ingress")
	f.BoolVar(&o.egress, "egress-gateway", false, "Include a gateway for calls to destinations outside the mesh, in the namespace istio-egress")
	f.StringVar(&o.controlPlane, "control-plane", "", "Install no control plane, and use the one of another cluster, as `CLUSTER=ADDRESS`: the name of the other cluster and the address of its east-west gateway or, with --config-cluster, of its Service istiod")
	f.StringVar(&o.configCluster, "config-cluster", "", "`Name` of the cluster whose API server has the configuration of the mesh, if the control plane runs in another cluster; give it in every cluster of the mesh")
	f.BoolVar(&o.istiod, "expose-istiod", false, "Let other clusters use this control plane through the east-west gateway")
}

// defaultImage returns the image that make image builds of this version. No registry has
// the name localhost, so nodes take it only from their own images.
func defaultImage() string {
	version := cli.CurrentBuild().Version
	if !regexp.MustCompile(`^\w[\w.-]{0,127}$`).MatchString(version) {
		version = "latest"
	}
	return "localhost/meshctl:" + version
}

// The namespaces of --ingress-gateway and --egress-gateway: gateways must not read the
// Secrets of the control plane.
const (
	ingressNamespace = "istio-ingress"
	egressNamespace  = "istio-egress"
)

// values returns the values of the files and the flags.
func (o *valueFlags) values(ctx context.Context, env *cli.Env, f *pflag.FlagSet) (*install.Values, error) {
	in, err := o.read(env)
	if err != nil {
		return nil, err
	}
	return o.valuesOf(ctx, env, f, in)
}

// valuesOf returns the values of inputs, whose flags are set.
func (o *valueFlags) valuesOf(ctx context.Context, env *cli.Env, f *pflag.FlagSet, in *inputs) (*install.Values, error) {
	v := install.Default(defaultImage())
	var errs []error
	var unsupported []install.Place
	for _, file := range in.Files {
		more, err := v.Read(file.Name, []byte(file.Text))
		unsupported, errs = append(unsupported, more...), append(errs, err)
	}
	for _, s := range in.Set {
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
	if text := v.ImageWarning(); text != "" {
		env.Warnf("%s", text)
	}
	return &v, checkMeshConfig(ctx, env, &v)
}

// checkMeshConfig refuses a MeshConfig that the control plane would refuse, and warns of
// fields without effect.
func checkMeshConfig(ctx context.Context, env *cli.Env, v *install.Values) error {
	text, err := yaml.Marshal(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: mesh.MeshConfigMap, Namespace: v.Namespace},
		Data:       map[string]string{"mesh": v.MeshConfigYAML()},
	})
	if err != nil {
		return err
	}
	m, err := load.Read(ctx, load.Config{
		Clusters:        []load.Cluster{{ID: mesh.ClusterID(v.ClusterID), Files: []load.File{{Name: "meshConfig", Text: text}}}},
		SystemNamespace: v.Namespace, Now: env.Now,
	})
	if err != nil {
		return err
	}
	var errs []error
	for i := range m.Files {
		p := &m.Files[i]
		if p.Kind == fields.Refused {
			errs = append(errs, fmt.Errorf("meshConfig: %s", p.Reason))
		} else {
			env.Warnf("meshConfig: %s", p.Reason)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Usagef("%w", err)
	}
	return nil
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
		{"config-cluster", o.configCluster, &v.ConfigCluster},
	} {
		if f.Changed(t.flag) {
			*t.p = t.value
		}
	}
	if o.controlPlane != "" {
		cluster, address, ok := strings.Cut(o.controlPlane, "=")
		if !ok || cluster == "" || address == "" {
			return cli.Usagef("--control-plane is %q: want CLUSTER=ADDRESS, as in cluster1=192.0.2.1", o.controlPlane)
		}
		v.Remote.Enabled, v.Remote.Cluster, v.Remote.Address = true, cluster, address
	}
	if v.Remote.Enabled && !v.Configures() && f.Changed("image") {
		return cli.Usagef("--image has no effect in a cluster without a control plane: the image of proxies is set where the control plane is installed")
	}
	v.Tags = append(v.Tags, o.tags...)
	v.CRDs = v.CRDs || o.crds
	if o.eastWest {
		if v.Network == "" {
			return cli.Usagef("--east-west-gateway needs the network of the cluster: give --network")
		}
		v.Gateways = append(v.Gateways, install.EastWestGateway(v.Network))
		// The cluster with the configuration exposes the services for all gateways.
		v.ExposeServices = !v.Remote.Enabled || v.Configures()
	}
	if o.ingress {
		g := install.IngressGateway()
		g.Namespace = ingressNamespace
		v.Gateways = append(v.Gateways, g)
	}
	if o.egress {
		g := install.EgressGateway()
		g.Namespace = egressNamespace
		v.Gateways = append(v.Gateways, g)
	}
	v.ExposeControlPlane = o.istiod
	return nil
}
