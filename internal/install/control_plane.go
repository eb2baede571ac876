package install

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// istiod is the name of the control plane's objects, without the revision.
const istiod = "istiod"

// portStatus is the port of readiness and status pages of the control plane.
const portStatus = 8080

// stopDelay is how many seconds a pod of the control plane goes on after Kubernetes has begun to
// remove it.
const stopDelay = 5

// meshUser is the user and the group of the control plane and of proxies.
const meshUser = 1337

// addNamespaces adds the namespaces of the control plane and of the gateways.
func (s *set) addNamespaces() {
	v := s.values
	namespaces := []string{v.Namespace}
	for _, g := range v.Gateways {
		if g.Namespace != "" && !slices.Contains(namespaces, g.Namespace) {
			namespaces = append(namespaces, g.Namespace)
		}
	}
	for _, name := range namespaces {
		n := &corev1.Namespace{TypeMeta: kindOf(corev1.SchemeGroupVersion, "Namespace"), ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name == v.Namespace && v.Network != "" {
			n.Labels = map[string]string{mesh.LabelNetwork: v.Network}
		}
		if cluster := v.controlPlaneID(); name == v.Namespace && v.Remote.Enabled && cluster != "" && cluster != v.ClusterID {
			n.Annotations = map[string]string{mesh.AnnotationControlPlaneClusters: cluster}
		}
		s.addTo(Shared, n)
	}
}

// addControlPlane adds the control plane, its rights, its configuration and its webhooks.
func (s *set) addControlPlane() {
	v := s.values
	for _, o := range v.controlPlaneRights(v.suffixed(istiod)) {
		s.add(o)
	}
	s.addMeshConfig()
	s.addMeshConfigCopy()
	s.addInjectorConfig()
	s.addControlPlaneWorkload(s.controlPlanePod())
	s.addWebhooks()
}

// controlPlaneRights returns the service account of a control plane, and its roles in the
// cluster with the configuration of the mesh.
func (v *Values) controlPlaneRights(account string) []kube.Object {
	scope := create.Scope{
		Style: create.Minimal, Authenticate: true, Configuration: true, Serve: true, CredentialNamespaces: v.credentialNamespaces(),
		Webhooks: v.webhookNames(), Revision: v.Revision,
	}
	return scope.Objects(create.Account{Namespace: v.Namespace, Name: account})
}

// addControlPlaneWorkload adds the Deployment of the control plane and its Service. Outside
// of the cluster, the Service has only ports with TLS, by the numbers of an east-west gateway.
func (s *set) addControlPlaneWorkload(pod corev1.PodTemplateSpec) {
	v := s.values
	name := v.suffixed(istiod)
	// The selector must not change. Istio selects its unrevisioned pods by istio: pilot, so that the
	// pods of a revision have another label. Monitoring selects all Services by istio: pilot.
	selector := map[string]string{"app": istiod, labelRevision: v.revision()}
	labels := joined(selector, map[string]string{"istio": "pilot"})
	pod.Labels = joined(labels, map[string]string{"sidecar.istio.io/inject": "false"})
	if v.Revision != "" {
		pod.Labels["istio"] = istiod
	}
	s.addWorkload(s.meta(name, labels), selector, pod, &v.ControlPlane.Workload)
	ports := []corev1.ServicePort{
		servicePort("grpc-xds", mesh.PortPlaintextXDS, mesh.PortPlaintextXDS),
		servicePort("https-dns", mesh.PortSecureXDS, mesh.PortSecureXDS),
		servicePort("https-webhook", 443, mesh.PortWebhooks),
		servicePort("http-monitoring", mesh.PortMonitoring, mesh.PortMonitoring),
	}
	var kind corev1.ServiceType // of a Service in the cluster
	if v.external() {
		ports = ports[1:3]
		ports[1].Port = mesh.PortWebhooks
		kind = corev1.ServiceTypeLoadBalancer
	}
	s.add(&corev1.Service{
		TypeMeta: kindOf(corev1.SchemeGroupVersion, "Service"), ObjectMeta: s.meta(name, labels),
		Spec: corev1.ServiceSpec{Type: kind, Selector: selector, Ports: ports},
	})
}

// MeshConfigYAML returns the content of the ConfigMap istio. The control plane adds the
// defaults.
func (v *Values) MeshConfigYAML() string {
	config, proxy := map[string]any{}, map[string]any{}
	if v.MeshID != "" {
		proxy["meshId"] = v.MeshID
	}
	if v.Namespace != mesh.DefaultSystemNamespace {
		config["rootNamespace"] = v.Namespace
		proxy["discoveryAddress"] = fmt.Sprintf("istiod.%s.svc:%d", v.Namespace, mesh.PortSecureXDS)
	}
	if len(proxy) > 0 {
		config["defaultConfig"] = proxy
	}
	text, err := yaml.Marshal(merged(config, v.MeshConfig))
	if err != nil {
		panic(err) // the values come from JSON
	}
	return string(text)
}

func (s *set) addMeshConfig() {
	s.addTo(Shared, &corev1.ConfigMap{
		TypeMeta: kindOf(corev1.SchemeGroupVersion, "ConfigMap"), ObjectMeta: s.meta(mesh.MeshConfigMap, nil),
		Data: map[string]string{"mesh": s.values.MeshConfigYAML()},
	})
}

// addMeshConfigCopy adds the ConfigMap to which the control plane of a revision copies the
// MeshConfig.
func (s *set) addMeshConfigCopy() {
	if s.values.Revision == "" {
		return
	}
	meta := s.meta(mesh.ConfigMapOf(s.values.Revision), nil)
	meta.Annotations = map[string]string{mesh.AnnotationCopyOf: mesh.MeshConfigMap}
	s.add(&corev1.ConfigMap{TypeMeta: kindOf(corev1.SchemeGroupVersion, "ConfigMap"), ObjectMeta: meta})
}

// addInjectorConfig adds the ConfigMap with the Helm values of the injector. Each revision
// has its own, as the image of proxies is in it.
func (s *set) addInjectorConfig() {
	v := s.values
	name, tag := splitImage(v.Image)
	global := map[string]any{
		"hub": path.Dir(name), "tag": tag, "imagePullPolicy": v.PullPolicy, "proxy": map[string]any{"image": v.Image},
		"multiCluster": map[string]any{"clusterName": v.ClusterID},
	}
	for name, value := range map[string]string{"meshID": v.MeshID, "network": v.Network} {
		if value != "" {
			global[name] = value
		}
	}
	if len(v.PullSecrets) > 0 {
		global["imagePullSecrets"] = v.PullSecrets
	}
	text, err := json.MarshalIndent(merged(map[string]any{"global": global}, v.Injector), "", "  ")
	var values inject.Values
	if err == nil {
		values, err = inject.ParseValues(string(text), "")
	}
	if err == nil {
		_, err = inject.New(inject.Settings{Values: values, SystemNamespace: v.Namespace})
	}
	if err != nil {
		s.err = fmt.Errorf("values of the injector: %w", err)
	}
	installation := Shared
	if v.Revision != "" {
		installation = v.Installation()
	}
	s.addTo(installation, &corev1.ConfigMap{
		TypeMeta: kindOf(corev1.SchemeGroupVersion, "ConfigMap"), ObjectMeta: s.meta(mesh.InjectorConfigMapOf(v.Revision), nil),
		Data: map[string]string{mesh.InjectorKeyValues: string(text) + "\n"},
	})
}

// merged returns the fields of both objects, at all levels; b precedes.
func merged(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]any{}
	}
	for name, value := range b {
		below, ok := value.(map[string]any)
		if at, both := out[name].(map[string]any); ok && both {
			value = merged(at, below)
		}
		out[name] = value
	}
	return out
}

// controlPlanePod returns the pod template of the control plane, without labels.
func (s *set) controlPlanePod() corev1.PodTemplateSpec {
	v := s.values
	args := []string{"serve", "--cluster-id=" + v.controlPlaneID(), "--log-format=json"}
	if v.MeshID != "" {
		args = append(args, "--mesh-id="+v.MeshID)
	}
	if host := v.DiscoveryHost(); host != istiod+"."+mesh.DefaultSystemNamespace+".svc" {
		args = append(args, "--serving-name="+host)
	}
	if namespaces := v.credentialNamespaces(); len(namespaces) > 0 {
		args = append(args, "--credential-namespaces="+strings.Join(namespaces, ","))
	}
	container := corev1.Container{
		Name: "discovery", Image: v.Image, ImagePullPolicy: v.PullPolicy, Args: append(args, v.ControlPlane.Args...),
		Env: append([]corev1.EnvVar{
			{Name: "REVISION", Value: v.revision()},
			fieldEnv("POD_NAME", "metadata.name"), fieldEnv("POD_NAMESPACE", "metadata.namespace"), fieldEnv("SERVICE_ACCOUNT", "spec.serviceAccountName"),
			{Name: "CLUSTER_ID", Value: v.controlPlaneID()},
			// meshctl in the same container reads status pages with the token in this directory.
			{Name: "XDG_RUNTIME_DIR", Value: "/run/meshctl"},
		}, v.ControlPlane.Env...),
		Ports: []corev1.ContainerPort{
			{Name: "http-debug", ContainerPort: portStatus, Protocol: corev1.ProtocolTCP},
			{Name: "grpc-xds", ContainerPort: mesh.PortPlaintextXDS, Protocol: corev1.ProtocolTCP},
			{Name: "tls-xds", ContainerPort: mesh.PortSecureXDS, Protocol: corev1.ProtocolTCP},
			{Name: "https-webhooks", ContainerPort: mesh.PortWebhooks, Protocol: corev1.ProtocolTCP},
			{Name: "http-monitoring", ContainerPort: mesh.PortMonitoring, Protocol: corev1.ProtocolTCP},
		},
		ReadinessProbe: probe("/ready", portStatus, 2, 5),
		LivenessProbe:  probe("/version", portStatus, 20, 5),
		// Proxies that reconnect must not reach a pod that has ended, so the pod goes on until
		// kube-proxy has removed it from the Service.
		Lifecycle:    &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: stopDelay}}},
		Resources:    v.ControlPlane.Workload.Resources,
		VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: "/run/meshctl"}},

		SecurityContext: restricted(),
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			"sidecar.istio.io/inject": "false",
			"prometheus.io/scrape":    "true", "prometheus.io/port": strconv.Itoa(mesh.PortMonitoring),
		}},
		Spec: corev1.PodSpec{
			ServiceAccountName: v.suffixed(istiod),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(meshUser)), RunAsGroup: new(int64(meshUser)), FSGroup: new(int64(meshUser)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{container},
			Volumes: []corev1.Volume{{Name: "run", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))},
			}}},
		},
	}
}

// addWorkload adds a Deployment, its PodDisruptionBudget and its autoscaler.
func (s *set) addWorkload(meta metav1.ObjectMeta, selector map[string]string, pod corev1.PodTemplateSpec, w *Workload) {
	selected := &metav1.LabelSelector{MatchLabels: selector}
	pod.Annotations = joined(pod.Annotations, w.Annotations)
	pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
	pod.Spec.NodeSelector, pod.Spec.Tolerations = w.NodeSelector, w.Tolerations
	pod.Spec.Affinity = cmp.Or(w.Affinity, spread(selected))
	for _, name := range s.values.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	d := newObject("apps/v1", "Deployment", meta, fields{
		"selector": selected, "template": &pod,
		"strategy": fields{"type": "RollingUpdate", "rollingUpdate": fields{"maxSurge": 1, "maxUnavailable": 0}},
	})
	if !w.Autoscale {
		d.Spec["replicas"] = w.Replicas // otherwise the autoscaler's
	}
	s.add(d)
	s.add(newObject("policy/v1", "PodDisruptionBudget", meta, fields{"maxUnavailable": 1, "selector": selected}))
	if w.Autoscale {
		s.add(newObject("autoscaling/v2", "HorizontalPodAutoscaler", meta, fields{
			"scaleTargetRef": fields{"apiVersion": d.APIVersion, "kind": d.Kind, "name": d.Name},
			"minReplicas":    w.Least, "maxReplicas": w.Most,
			"metrics": []fields{{"type": "Resource", "resource": fields{
				"name": corev1.ResourceCPU, "target": fields{"type": "Utilization", "averageUtilization": 80},
			}}},
		}))
	}
}

// spread returns the affinity that prefers another node, and another zone, for each pod.
func spread(selected *metav1.LabelSelector) *corev1.Affinity {
	prefer := func(weight int32, key string) corev1.WeightedPodAffinityTerm {
		return corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: selected, TopologyKey: key}}
	}
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
		prefer(100, corev1.LabelHostname), prefer(50, corev1.LabelTopologyZone),
	}}}
}

func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func probe(path string, port, period, timeout int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}},
		PeriodSeconds: period, TimeoutSeconds: timeout,
	}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func servicePort(name string, port, target int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, TargetPort: intstr.FromInt32(target), Protocol: corev1.ProtocolTCP}
}

func resources(cpu, memory, cpuLimit, memoryLimit string) corev1.ResourceRequirements {
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		if cpu != "" {
			out[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		return out
	}
	return corev1.ResourceRequirements{Requests: list(cpu, memory), Limits: list(cpuLimit, memoryLimit)}
}

// joined returns the entries of both maps; b precedes.
func joined(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil && len(b) > 0 {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}
