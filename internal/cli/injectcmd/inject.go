// Package injectcmd has the command inject.
package injectcmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// maxInput bounds a file, in bytes.
const maxInput = 32 << 20

type injectOptions struct {
	kube       cli.KubeFlags
	context    string
	system     string
	namespace  string
	paths      []string
	out        string
	meshConfig string
	values     string
	config     string
	revision   string
	image      string
	cluster    string
	network    string
	offline    bool
}

// NewInject returns the command inject.
func NewInject(env *cli.Env) *cobra.Command {
	var o injectOptions
	cmd := &cobra.Command{
		Use:     "inject -f FILE...",
		Aliases: []string{"kube-inject"},
		Short:   "Add the sidecar to the pods of YAML files",
		Long: `Add meshctl agent with Envoy to the pods of files: to Pods and to the templates of
Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers, Jobs and
CronJobs, also in Lists. The command does not change other documents. The webhook of
meshctl serve makes the same changes.

The settings come from the cluster: the ConfigMaps istio and istio-sidecar-injector, and
ProxyConfigs. With --meshConfigFile, --valuesFile or --injectConfigFile, the settings
come only from files. With --offline the command reads no cluster.

The command does not change a pod that uses the network of its node, is already
injected, or has the label sidecar.istio.io/inject: "false"; it prints the reason to
standard error. If an annotation is invalid, the command reports an error and writes
nothing.`,
		Example: `  # Inject objects before they are applied
  meshctl inject -f app.yaml | kubectl apply -f -

  # Inject without a cluster
  meshctl inject -f app.yaml --offline --image registry.example/meshctl:1.0 --cluster-id cluster1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	o.kube.Bind(f)
	o.kube.ContextVar(env, cmd, &o.context, "context", "Kubeconfig `context` of the cluster whose settings are used (default the current one)")
	o.kube.NamespaceVar(env, cmd, &o.system, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the control plane")
	o.kube.NamespaceVar(env, cmd, &o.namespace, "namespace", "n", "", "`Namespace` of objects that name none (default the namespace of the context, else default)")
	f.StringSliceVarP(&o.paths, "file", "f", nil, "`File` with objects, - for standard input; may be repeated")
	cli.Rename(f, "file", "filename")
	f.StringVar(&o.out, "out", "", "Write to this `file`, or - for standard output (default -)")
	f.VarP(&outputValue{&o.out}, "output", "o", "Output `format`: yaml; other values are files, as in istioctl, like --out")
	cli.TypedOnly(f, "output") // elsewhere it is another format
	cli.Suggest(f, "output", string(output.FormatYAML))
	f.StringVar(&o.meshConfig, "meshConfigFile", "", "`File` with the MeshConfig")
	f.StringVar(&o.values, "valuesFile", "", "`File` with the Helm values of the injector, in the form of the key values of the ConfigMap")
	f.StringVar(&o.config, "injectConfigFile", "", "`File` with policy and templates, in the form of the key config of the ConfigMap")
	f.StringVar(&o.revision, "revision", "", "`Name` of the revision of the control plane")
	f.StringVar(&o.image, "image", "", "`Image` of the proxy (default global.proxy.image of the values, else meshctl:latest)")
	f.StringVar(&o.cluster, "cluster-id", "", "`Name` of the cluster (default global.multiCluster.clusterName of the values, else Kubernetes)")
	f.StringVar(&o.network, "network", "", "`Network` of the pods (default global.network of the values, else the label of the system namespace)")
	f.BoolVar(&o.offline, "offline", false, "Read no cluster: settings come from files and defaults")
	return cmd
}

func (o *injectOptions) run(ctx context.Context, env *cli.Env) error {
	if len(o.paths) == 0 {
		return cli.Usagef("name the files to inject with -f")
	}
	if o.cluster != "" && !mesh.ClusterID(o.cluster).Valid() {
		return cli.Usagef("--cluster-id %q: want letters, digits, '.', '-' and '_', at most 63", o.cluster)
	}
	texts, err := o.settings(ctx, env)
	if err != nil {
		return err
	}
	in, err := o.injector(env, texts)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	var errs []error
	for _, path := range o.paths {
		name, text, err := cli.ReadInput(env, path, maxInput)
		if err != nil {
			return err
		}
		if out.Len() > 0 {
			out.WriteString("---\n")
		}
		made, outcomes, err := in.Text(ctx, text, inject.Pod{Namespace: cmp.Or(o.namespace, texts.namespace)})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		out.Write(made)
		report(env, name, outcomes)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if o.out == "" || o.out == "-" {
		_, err := env.Stdout.Write(out.Bytes())
		return err
	}
	return files.Write(o.out, out.Bytes(), os.FileMode(0o644))
}

// outputValue is the value of --output: the only format, or a file, as in istioctl.
type outputValue struct{ file *string }

func (v *outputValue) Type() string   { return "format" }
func (v *outputValue) String() string { return "" }

func (v *outputValue) Set(s string) error {
	if s == string(output.FormatYAML) {
		return nil
	}
	if _, err := output.ParseFormat(s); !errors.Is(err, output.ErrFormat) {
		return fmt.Errorf("output format %q is not supported, use yaml, or --out for a file", s)
	}
	*v.file = s
	return nil
}

// report prints which objects are not injected, and warnings.
func report(env *cli.Env, name string, outcomes []inject.Outcome) {
	if len(outcomes) == 0 {
		env.Notef("%s: nothing is injected: no object in it has pods", name)
	}
	for _, o := range outcomes {
		if o.Skipped != "" {
			fmt.Fprintf(env.Stderr, "%s:%d: %s is not injected: %s\n", name, o.Line, o.Object, o.Skipped)
		}
		for _, w := range o.Warnings {
			fmt.Fprintf(env.Stderr, "%s:%d: %s: %s\n", name, o.Line, o.Object, w)
		}
	}
}

// settings are the texts of the settings, and what the cluster adds.
type settings struct {
	mesh, values, config string
	proxyConfigs         []*snapshot.ProxyConfig
	network              string // of the system namespace
	namespace            string // of the context
}

// injector returns the injector of the settings.
func (o *injectOptions) injector(env *cli.Env, s settings) (*inject.Injector, error) {
	meshConfig, warnings, err := inject.ParseMesh(s.mesh)
	if err != nil {
		return nil, fmt.Errorf("MeshConfig: %w", err)
	}
	for _, w := range warnings {
		fmt.Fprintf(env.Stderr, "MeshConfig: %s\n", w)
	}
	values, err := inject.ParseValues(s.values, s.config)
	if err != nil {
		return nil, err
	}
	if o.image != "" {
		values.Global.Hub, values.Global.Tag, values.Global.Proxy.Image = "", nil, o.image
	}
	values.Revision = cmp.Or(o.revision, values.Revision)
	values.Global.MultiCluster.ClusterName = cmp.Or(o.cluster, values.Global.MultiCluster.ClusterName)
	values.Global.Network = cmp.Or(o.network, values.Global.Network)
	return inject.New(inject.Settings{
		Mesh: meshConfig, Values: values, ProxyConfigs: s.proxyConfigs, SystemNamespace: o.system, Network: mesh.NetworkID(s.network),
	})
}

// settings reads the settings from files, or from the cluster if no file is given.
func (o *injectOptions) settings(ctx context.Context, env *cli.Env) (s settings, err error) {
	if o.meshConfig == "" && o.values == "" && o.config == "" && !o.offline {
		return o.clusterSettings(ctx, env)
	}
	for _, f := range []struct {
		path string
		to   *string
	}{{o.meshConfig, &s.mesh}, {o.values, &s.values}, {o.config, &s.config}} {
		if f.path == "" {
			continue
		}
		text, err := files.Read(f.path, maxInput)
		if err != nil {
			return s, err
		}
		*f.to = string(text)
	}
	return s, nil
}

func (o *injectOptions) clusterSettings(ctx context.Context, env *cli.Env) (s settings, err error) {
	access, err := kube.Load(o.kube.Options(env, o.context))
	if errors.Is(err, kube.ErrNoAccess) {
		return s, fmt.Errorf("%w, or use files and defaults with --offline", err)
	}
	if err != nil {
		return s, err
	}
	s.namespace = access.Namespace
	client, err := kube.NewClient(access.Config)
	if err != nil {
		return s, err
	}
	defer client.Close()
	read := func(name string) (map[string]string, error) {
		m, err := client.ConfigMaps(o.system).Get(ctx, name)
		if apierrors.IsNotFound(err) {
			fmt.Fprintf(env.Stderr, "ConfigMap %s/%s does not exist: defaults are used\n", o.system, name)
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %w", o.system, name, err)
		}
		return m.Data, nil
	}
	data, err := read("istio")
	if err != nil {
		return s, err
	}
	s.mesh = data["mesh"]
	if data, err = read(mesh.InjectorConfigMapOf(o.revision)); err != nil {
		return s, err
	}
	s.values, s.config = data[mesh.InjectorKeyValues], data[mesh.InjectorKeyConfig]
	if s.proxyConfigs, err = proxyConfigs(ctx, env, client); err != nil {
		return s, err
	}
	ns, err := client.Namespaces().Get(ctx, o.system)
	if err != nil && !apierrors.IsNotFound(err) {
		return s, fmt.Errorf("namespace %s: %w", o.system, err)
	}
	if err == nil {
		s.network = ns.Labels[mesh.LabelNetwork]
	}
	return s, nil
}

// maxProxyConfigs bounds the ProxyConfigs that are read.
const maxProxyConfigs = 1000

// proxyConfigs returns the valid ProxyConfigs of a cluster, and prints why others are not used.
func proxyConfigs(ctx context.Context, env *cli.Env, client *kube.Client) ([]*snapshot.ProxyConfig, error) {
	kind := schema.GroupVersionKind{Group: "networking.istio.io", Version: "v1beta1", Kind: "ProxyConfig"}
	items, err := client.ListAny(ctx, kind, "", "", maxProxyConfigs+1)
	switch {
	case apierrors.IsForbidden(err):
		env.Warnf("no ProxyConfig is used: %s", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ProxyConfigs: %w", err)
	case len(items) > maxProxyConfigs:
		return nil, fmt.Errorf("there are more than %d ProxyConfigs", maxProxyConfigs)
	}
	var out []*snapshot.ProxyConfig
	for _, item := range items {
		text, err := item.MarshalJSON()
		if err != nil {
			return nil, err
		}
		c, err := inject.ParseProxyConfig(text)
		if err != nil {
			env.Warnf("ProxyConfig %s/%s is not used: %s", item.GetNamespace(), item.GetName(), err)
			continue
		}
		out = append(out, c)
	}
	return out, nil
}
