// Package install makes the objects of an installation in a cluster: the control plane,
// its rights, the webhooks, CustomResourceDefinitions and gateways. Read reads Values from
// IstioOperator and Helm values; Objects returns the objects in the order to apply. It
// does no I/O.
package install

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Values configure an installation.
type Values struct {
	// Name distinguishes the installations of a cluster. It is the value of
	// LabelInstallation.
	Name      string
	Namespace string // of the control plane
	// Revision is the suffix of the control plane's names, and the value of istio.io/rev;
	// empty means DefaultRevision, without a suffix.
	Revision string
	// Tags are further values of istio.io/rev that select the control plane.
	Tags []string

	ClusterID string
	// ConfigCluster is the cluster whose API server has the configuration of the mesh, if the
	// control plane runs in another cluster. Empty means the cluster of the control plane.
	ConfigCluster string
	Network       string // of the cluster; empty means none
	MeshID        string
	Image         string
	PullPolicy    corev1.PullPolicy
	PullSecrets   []string

	ControlPlane ControlPlane
	// Remote is for a cluster without a control plane of its own.
	Remote Remote
	// MeshConfig is the content of the ConfigMap istio.
	MeshConfig map[string]any
	// Injector are Helm values of the injector, which precede those that follow from the
	// other fields.
	Injector map[string]any
	Gateways []Gateway

	// Inputs is the text of the ConfigMap from which an upgrade starts; empty for none.
	Inputs string

	CRDs bool
	// ExposeServices lets other networks call all services through the east-west gateway.
	ExposeServices bool
	// ExposeControlPlane lets other clusters use the control plane through the east-west
	// gateway.
	ExposeControlPlane bool
}

// ControlPlane configures the Deployment of the control plane.
type ControlPlane struct {
	Disabled bool // the installation has only other objects, such as gateways
	Workload Workload
	Env      []corev1.EnvVar
	// Args are further arguments of meshctl serve.
	Args []string
}

// Remote configures the use of a control plane in another cluster. Its own
// installation sets the values of the control plane itself.
type Remote struct {
	Enabled bool
	// Cluster is the cluster of the control plane, which may write the roots of the mesh
	// here. Empty leaves this permission, an annotation of the namespace, to the user.
	Cluster string
	// Address is the IP address or the host name at which the control plane is exposed.
	Address string
	// Configures is true if the cluster has the configuration of the mesh, as
	// Values.ConfigCluster with the name of the cluster does.
	Configures bool
	// InjectionPath is the path of the injector; empty means one with the cluster and its
	// network.
	InjectionPath string
}

// Workload configures a Deployment and its autoscaler.
type Workload struct {
	// Replicas is the number of replicas without an autoscaler.
	Replicas int32
	// Least and Most are the bounds of the autoscaler.
	Autoscale    bool
	Least, Most  int32
	Resources    corev1.ResourceRequirements
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
	Affinity     *corev1.Affinity // nil for the default, which spreads replicas over nodes and zones
	Annotations  map[string]string
}

// Gateway configures a gateway: a Deployment by injection, and its Service.
type Gateway struct {
	Name      string
	Namespace string // empty for the namespace of the control plane
	// Labels are on the Service and on the pods.
	Labels map[string]string
	// Network is set for an east-west gateway of the network.
	Network            string
	Workload           Workload
	Env                []corev1.EnvVar
	ServiceType        corev1.ServiceType
	ServiceAnnotations map[string]string
	Ports              []corev1.ServicePort
	LoadBalancerIP     string
	ExternalIPs        []string
}

// Names of installations and gateways.
const (
	defaultName    = "meshctl"
	eastWestName   = "istio-eastwestgateway"
	ingressName    = "istio-ingressgateway"
	egressName     = "istio-egressgateway"
	defaultMeshID  = "cluster.local"
	defaultCluster = "Kubernetes"
)

// Default returns the values of an installation for which nothing is configured.
func Default(image string) Values {
	return Values{
		Name: defaultName, Namespace: mesh.DefaultSystemNamespace, ClusterID: defaultCluster, Image: image,
		PullPolicy: corev1.PullIfNotPresent,
		ControlPlane: ControlPlane{
			Workload: Workload{Autoscale: true, Replicas: 2, Least: 2, Most: 5, Resources: resources("200m", "256Mi", "", "1Gi")},
		},
	}
}

// defaultGateway returns a gateway of a kind, which is the default name of gateways for this
// purpose. Its labels are those that Istio's Gateway objects select.
func defaultGateway(name, kind string) Gateway {
	g := Gateway{
		Name: name, Labels: map[string]string{"app": kind, "istio": istioLabel(kind)}, ServiceType: corev1.ServiceTypeLoadBalancer,
		Workload: Workload{Autoscale: true, Replicas: 1, Least: 1, Most: 5, Resources: resources("100m", "128Mi", "2000m", "1024Mi")},
		Ports: []corev1.ServicePort{
			servicePort("status-port", mesh.PortEnvoyReadiness, mesh.PortEnvoyReadiness),
			servicePort("http2", 80, 8080),
			servicePort("https", 443, 8443),
		},
	}
	if kind == egressName {
		g.ServiceType, g.Ports = corev1.ServiceTypeClusterIP, g.Ports[1:]
	}
	return g
}

// EastWestGateway returns the gateway through which other networks reach a network.
func EastWestGateway(network string) Gateway {
	g := defaultGateway(eastWestName, eastWestName)
	g.Network = network
	g.Ports = eastWestPorts()
	return g
}

// IngressGateway returns the gateway for callers from outside the mesh.
func IngressGateway() Gateway { return defaultGateway(ingressName, ingressName) }

// EgressGateway returns the gateway for calls to destinations outside the mesh.
func EgressGateway() Gateway { return defaultGateway(egressName, egressName) }

func eastWestPorts() []corev1.ServicePort {
	return []corev1.ServicePort{
		servicePort("status-port", mesh.PortEnvoyReadiness, mesh.PortEnvoyReadiness),
		servicePort("tls", mesh.PortEastWest, mesh.PortEastWest),
		servicePort("tls-istiod", mesh.PortSecureXDS, mesh.PortSecureXDS),
		servicePort("tls-webhook", mesh.PortWebhooks, mesh.PortWebhooks),
	}
}

// revision returns the value of istio.io/rev.
func (v *Values) revision() string { return cmp.Or(v.Revision, mesh.DefaultRevision) }

// suffixed returns a name of the control plane with its revision.
func (v *Values) suffixed(name string) string {
	if v.Revision == "" {
		return name
	}
	return name + "-" + v.Revision
}

// Installation returns the value of LabelInstallation.
func (v *Values) Installation() string { return v.suffixed(v.Name) }

// DiscoveryHost returns the host name of the control plane.
func (v *Values) DiscoveryHost() string { return v.suffixed(istiod) + "." + v.Namespace + ".svc" }

// credentialNamespaces returns the namespaces whose Secrets gateways use.
func (v *Values) credentialNamespaces() []string {
	var out []string
	for _, g := range v.Gateways {
		if v.readsSecrets(&g) {
			out = append(out, g.Namespace)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// readsSecrets reports whether the gateway may use the Secrets of its namespace. Where the
// control plane is, they are the signing CA and remote secrets. Gateways of networks pass
// TLS through.
func (v *Values) readsSecrets(g *Gateway) bool {
	return g.Network == "" && g.Namespace != "" && g.Namespace != v.Namespace
}

// Check returns the faults of the values.
func (v *Values) Check() error {
	var errs []error
	label := func(what, value string) {
		if !mesh.IsDNSLabel(value) {
			errs = append(errs, fmt.Errorf("%s %q is not a DNS label", what, value))
		}
	}
	label("name", v.Name)
	label("namespace", v.Namespace)
	for _, rev := range append([]string{v.revision()}, v.Tags...) {
		label("revision", rev)
	}
	if v.Revision == mesh.DefaultRevision {
		errs = append(errs, fmt.Errorf("revision %s is the name of a control plane without a revision: leave it out", mesh.DefaultRevision))
	}
	if copied := mesh.ConfigMapOf(v.Revision); copied == mesh.InjectorConfigMap || copied == RootConfigMap {
		errs = append(errs, fmt.Errorf("revision %s: the ConfigMap %s is for another purpose: choose another revision", v.Revision, copied))
	}
	if len(v.Installation()) > maxLabel {
		errs = append(errs, fmt.Errorf("name %s has more than %d bytes", v.Installation(), maxLabel))
	}
	if v.Image == "" && !v.ControlPlane.Disabled && (!v.Remote.Enabled || v.Configures()) {
		errs = append(errs, errors.New("there is no image of the control plane"))
	}
	if v.ClusterID == "" {
		errs = append(errs, errors.New("the cluster has no name"))
	}
	if err := v.ControlPlane.Workload.check("control plane"); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, v.checkRemote()...)
	errs = append(errs, v.checkExternal()...)
	seen := map[string]bool{}
	for _, g := range v.Gateways {
		label("gateway", g.Name)
		if g.Namespace != "" {
			label("namespace of gateway "+g.Name, g.Namespace)
		}
		if key := g.Namespace + "/" + g.Name; seen[key] {
			errs = append(errs, fmt.Errorf("gateway %s is configured twice", g.Name))
		} else {
			seen[key] = true
		}
		if g.Name == eastWestName && g.Network == "" && v.Network != "" {
			errs = append(errs, fmt.Errorf("gateway %s has no network", g.Name))
		}
		if err := g.Workload.check("gateway " + g.Name); err != nil {
			errs = append(errs, err)
		}
		if len(g.Ports) == 0 {
			errs = append(errs, fmt.Errorf("gateway %s has no ports", g.Name))
		}
	}
	return errors.Join(errs...)
}

// maxLabel is the maximum length of the value of a label.
const maxLabel = 63

func (w *Workload) check(of string) error {
	if w.Autoscale && (w.Least < 1 || w.Most < w.Least) {
		return fmt.Errorf("%s: autoscaling from %d to %d replicas", of, w.Least, w.Most)
	}
	if !w.Autoscale && w.Replicas < 0 {
		return fmt.Errorf("%s: %d replicas", of, w.Replicas)
	}
	return nil
}
