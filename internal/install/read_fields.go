package install

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// operator reads an IstioOperator.
func (r *reader) operator(doc yamldoc.Value) {
	r.fields(doc, "", map[string]field{
		"apiVersion": r.only("install.istio.io/v1alpha1"),
		"kind":       r.only("IstioOperator"),
		"metadata": r.in(map[string]field{
			"name":      r.text(&r.values.Name),
			"namespace": r.text(&r.values.Namespace),
		}),
		"spec": r.in(r.spec()),
	})
}

// spec returns the fields of the spec of an IstioOperator.
func (r *reader) spec() map[string]field {
	v := r.values
	return map[string]field{
		"profile":    r.profile,
		"revision":   r.text(&v.Revision),
		"namespace":  r.text(&v.Namespace),
		"hub":        r.image(&r.hub),
		"tag":        r.image(&r.tag),
		"meshConfig": r.meshConfig,
		"components": r.in(map[string]field{
			"base":            r.in(map[string]field{"enabled": r.boolean(&v.CRDs)}),
			"pilot":           r.in(map[string]field{"enabled": r.pilotEnabled, "k8s": r.in(r.controlPlane())}),
			"ingressGateways": r.gateways(ingressName),
			"egressGateways":  r.gateways(egressName),
			"cni":             r.in(map[string]field{"enabled": r.only("false")}),
			"ztunnel":         r.in(map[string]field{"enabled": r.only("false")}),
		}),
		"values": r.in(r.helmValues()),
	}
}

// helmValues returns the values of Istio's charts base and istiod.
func (r *reader) helmValues() map[string]field {
	v, w := r.values, &r.values.ControlPlane.Workload
	template := r.in(map[string]field{"injectionTemplate": r.only("gateway")})
	return map[string]field{
		"global": r.in(map[string]field{
			"meshID":         r.text(&v.MeshID),
			"network":        r.text(&v.Network),
			"multiCluster":   r.in(map[string]field{"clusterName": r.text(&v.ClusterID), "enabled": r.only("true", "false")}),
			"hub":            r.image(&r.hub),
			"tag":            r.image(&r.tag),
			"istioNamespace": r.text(&v.Namespace),

			"remotePilotAddress": r.text(&v.Remote.Address),
			"configCluster":      r.boolean(&v.Remote.Configures),
			// Control planes write to each cluster that permits it.
			"externalIstiod": r.only("true", "false"),

			"imagePullPolicy":  decoded(r, &v.PullPolicy),
			"imagePullSecrets": decoded(r, &v.PullSecrets),

			"caAddress": r.injector("global", "caAddress"),
			"proxy": r.injectorFields([]string{"global", "proxy"}, "autoInject", "componentLogLevel", "excludeIPRanges",
				"excludeInboundPorts", "excludeOutboundPorts", "holdApplicationUntilProxyStarts", "image", "includeIPRanges",
				"includeInboundPorts", "includeOutboundPorts", "lifecycle", "logLevel", "readinessFailureThreshold",
				"readinessInitialDelaySeconds", "readinessPeriodSeconds", "resources", "seccompProfile", "startupProbe"),
			"proxy_init": r.injectorFields([]string{"global", "proxy_init"}, "forceApplyIptables"),
		}),
		"sidecarInjectorWebhook": r.injectorFields([]string{"sidecarInjectorWebhook"}, "alwaysInjectSelector", "defaultTemplates",
			"injectedAnnotations", "neverInjectSelector", "rewriteAppHTTPProbe", "templates"),
		"pilot": r.in(map[string]field{
			"env":              r.env,
			"autoscaleEnabled": r.boolean(&w.Autoscale),
			"autoscaleMin":     r.number(&w.Least),
			"autoscaleMax":     r.number(&w.Most),
			"replicaCount":     r.number(&w.Replicas),
			"resources":        decoded(r, &w.Resources),
			"nodeSelector":     decoded(r, &w.NodeSelector),
			"tolerations":      decoded(r, &w.Tolerations),
			"affinity":         decoded(r, &w.Affinity),
			"podAnnotations":   decoded(r, &w.Annotations),
		}),
		"istiodRemote": r.in(map[string]field{
			"enabled":       r.boolean(&v.Remote.Enabled),
			"injectionPath": r.text(&v.Remote.InjectionPath),
		}),
		"meshConfig":   r.meshConfig,
		"revision":     r.text(&v.Revision),
		"revisionTags": decoded(r, &v.Tags),
		"gateways":     r.in(map[string]field{ingressName: template, egressName: template}),
	}
}

// controlPlane returns the Kubernetes settings of the control plane in an IstioOperator.
func (r *reader) controlPlane() map[string]field {
	fields := r.workload(&r.values.ControlPlane.Workload)
	fields["env"] = r.envList
	return fields
}

// workload returns the Kubernetes settings that all Deployments of an IstioOperator have.
func (r *reader) workload(w *Workload) map[string]field {
	autoscale := func(p *int32) field {
		number := r.number(p)
		return func(at yamldoc.Value, path string) {
			w.Autoscale = true
			number(at, path)
		}
	}
	return map[string]field{
		"resources":      decoded(r, &w.Resources),
		"replicaCount":   r.number(&w.Replicas),
		"hpaSpec":        r.in(map[string]field{"minReplicas": autoscale(&w.Least), "maxReplicas": autoscale(&w.Most)}),
		"nodeSelector":   decoded(r, &w.NodeSelector),
		"tolerations":    decoded(r, &w.Tolerations),
		"affinity":       decoded(r, &w.Affinity),
		"podAnnotations": decoded(r, &w.Annotations),
	}
}

// profile reads the profile. Gateways are only those that are listed.
func (r *reader) profile(at yamldoc.Value, path string) {
	switch at.Text() {
	case "", "default", "minimal":
	case "remote":
		r.values.Remote.Enabled = true
	case "empty":
		if !r.pilot {
			r.values.ControlPlane.Disabled = true
		}
	default:
		r.fail(at, path, "profile %s is not supported, use default, minimal, remote or empty", at.Text())
	}
}

// pilotEnabled reads whether there is a control plane. It precedes the profile.
func (r *reader) pilotEnabled(at yamldoc.Value, path string) {
	enabled := true
	r.boolean(&enabled)(at, path)
	r.values.ControlPlane.Disabled, r.pilot = !enabled, true
}

// image reads the registry or the tag of the image.
func (r *reader) image(part *string) field {
	return func(at yamldoc.Value, _ string) {
		*part = at.Text()
		name, tag := splitImage(r.values.Image)
		if r.hub != "" {
			name = strings.TrimSuffix(r.hub, "/") + "/" + imageName
		}
		r.values.Image = name + ":" + cmp.Or(r.tag, tag)
	}
}

// imageName is the last part of the name of meshctl's image.
const imageName = "meshctl"

// istioHubs are registries of Istio, which have no image of meshctl.
var istioHubs = []string{"docker.io/istio", "istio", "gcr.io/istio-release", "gcr.io/istio-testing", "registry.istio.io/release", "registry.istio.io/testing"}

// ImageWarning returns why the image cannot exist; empty if it may.
func (v *Values) ImageWarning() string {
	name, _ := splitImage(v.Image)
	hub, ok := strings.CutSuffix(name, "/"+imageName)
	if !ok || !slices.Contains(istioHubs, hub) {
		return ""
	}
	return fmt.Sprintf("image %s does not exist: registries of Istio have no %s; give --image, or the hub that has it", v.Image, imageName)
}

// splitImage splits the name of an image at its tag.
func splitImage(image string) (name, tag string) {
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}

// meshConfig adds fields to the MeshConfig, at all levels.
func (r *reader) meshConfig(at yamldoc.Value, path string) {
	var given map[string]any
	if decoded(r, &given)(at, path); len(given) == 0 {
		return
	}
	r.values.MeshConfig = merged(r.values.MeshConfig, given)
}

// injector returns the field that keeps a value of the injector, at a path of Helm values.
func (r *reader) injector(names ...string) field {
	return func(at yamldoc.Value, path string) {
		var value any = at.Text() // an empty text is a value of its own, as of componentLogLevel
		decoded(r, &value)(at, path)
		for _, name := range slices.Backward(names) {
			value = map[string]any{name: value}
		}
		given, _ := value.(map[string]any)
		r.values.Injector = merged(r.values.Injector, given)
	}
}

// injectorFields returns the fields that the injector reads, below a path of Helm values.
func (r *reader) injectorFields(path []string, names ...string) field {
	known := map[string]field{}
	for _, name := range names {
		known[name] = r.injector(append(slices.Clone(path), name)...)
	}
	return r.in(known)
}

// runtimeVariables are the variables of Go that the control plane obeys.
var runtimeVariables = []string{"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT"}

// setEnv sets a variable of the control plane. MESHCTL_<FLAG> sets a flag of serve.
func (r *reader) setEnv(at yamldoc.Value, path string, e corev1.EnvVar) {
	if !strings.HasPrefix(e.Name, "MESHCTL_") && !slices.Contains(runtimeVariables, e.Name) {
		r.unsupported = append(r.unsupported, r.place(at, path))
		return
	}
	list := slices.DeleteFunc(slices.Clone(r.values.ControlPlane.Env), func(o corev1.EnvVar) bool { return o.Name == e.Name })
	r.values.ControlPlane.Env = append(list, e)
}

// env reads pilot.env of Helm values.
func (r *reader) env(at yamldoc.Value, path string) {
	if !at.IsMapping() {
		r.fail(at, path, "want a mapping of names to values")
		return
	}
	for name, value := range at.Fields() {
		if !value.IsNull() {
			r.setEnv(value, path+"."+name, corev1.EnvVar{Name: name, Value: value.Text()})
		}
	}
}

// envList reads the variables of the control plane in an IstioOperator.
func (r *reader) envList(at yamldoc.Value, path string) {
	var list []corev1.EnvVar
	decoded(r, &list)(at, path)
	items, _ := at.Items()
	for i, e := range list {
		r.setEnv(items[i], path+"["+e.Name+"]", e)
	}
}

// gateways reads a list of gateways of a kind, which is the name of one without a name.
func (r *reader) gateways(kind string) field {
	return func(at yamldoc.Value, path string) {
		items, ok := at.Items()
		if !ok && !at.IsNull() {
			r.fail(at, path, "want a list")
		}
		for _, item := range items {
			name := cmp.Or(item.Get("name").Text(), kind)
			of := kind
			if name == eastWestName {
				of = eastWestName
			}
			r.gateway(item, path+"["+name+"]", name, of)
		}
	}
}

func (r *reader) gateway(at yamldoc.Value, path, name, kind string) {
	v := r.values
	g := defaultGateway(name, kind)
	namespace := at.Get("namespace").Text()
	same := func(o Gateway) bool { return o.Name == name && o.Namespace == namespace }
	if i := slices.IndexFunc(v.Gateways, same); i >= 0 {
		g = v.Gateways[i]
	}
	enabled := true
	var labels map[string]string
	settings := r.workload(&g.Workload)
	settings["env"] = decoded(r, &g.Env)
	settings["serviceAnnotations"] = decoded(r, &g.ServiceAnnotations)
	settings["service"] = r.in(map[string]field{
		"type":           decoded(r, &g.ServiceType),
		"ports":          decoded(r, &g.Ports),
		"loadBalancerIP": r.text(&g.LoadBalancerIP),
		"externalIPs":    decoded(r, &g.ExternalIPs),
	})
	r.fields(at, path, map[string]field{
		"name":      r.text(&g.Name),
		"namespace": r.text(&g.Namespace),
		"enabled":   r.boolean(&enabled),
		"label":     decoded(r, &labels),
		"k8s":       r.in(settings),
	})
	g.Name, g.Labels = name, joined(g.Labels, labels)
	g.Env = slices.DeleteFunc(slices.Clone(g.Env), func(e corev1.EnvVar) bool {
		if e.Name == envNetworkView {
			g.Network = e.Value
		}
		return e.Name == envNetworkView
	})
	if g.Network != "" {
		delete(g.Labels, mesh.LabelNetwork) // Objects sets it
	}
	v.Gateways = slices.DeleteFunc(slices.Clone(v.Gateways), same)
	if enabled {
		v.Gateways = append(v.Gateways, g)
	}
}
