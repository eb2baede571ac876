package install

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// addRemote adds what a cluster without a control plane needs: the Service by which pods
// and the API server reach the control plane of another cluster, its webhooks, and the
// rights of that control plane to write here. The cluster with the configuration of the
// mesh also has the MeshConfig and the settings of the injector.
func (s *set) addRemote() {
	v := s.values
	name := v.suffixed(istiod)
	labels := map[string]string{"app": istiod, labelRevision: v.revision()}
	service := &corev1.Service{
		TypeMeta: kindOf(corev1.SchemeGroupVersion, "Service"), ObjectMeta: s.meta(name, labels),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			servicePort("https-dns", mesh.PortSecureXDS, mesh.PortSecureXDS),
			servicePort("https-webhook", 443, mesh.PortWebhooks),
		}},
	}
	address := v.remoteIP()
	if !address.IsValid() {
		service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, v.Remote.Address
	}
	s.add(service)
	if address.IsValid() {
		s.addRemoteEndpoints(name, labels, service.Spec.Ports, address)
	}
	if v.Configures() {
		for _, o := range v.controlPlaneRights(istiod)[1:] { // create-remote-secret makes the account
			s.add(o)
		}
		s.addMeshConfig()
		s.addInjectorConfig()
		s.addWebhooks()
		return
	}
	for _, o := range create.RemoteWriter(create.Account{Namespace: v.Namespace, Name: create.Reader}, name+"-remote", v.injectorNames()) {
		s.add(o)
	}
	s.addInjectors()
}

// addRemoteEndpoints adds the address of the control plane as the endpoint of its Service.
func (s *set) addRemoteEndpoints(service string, labels map[string]string, ports []corev1.ServicePort, address netip.Addr) {
	meta := s.meta(service+"-remote", labels)
	meta.Labels[mesh.LabelServiceName] = service
	meta.Labels["endpointslice.kubernetes.io/managed-by"] = ManagedBy
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: kindOf(discoveryv1.SchemeGroupVersion, "EndpointSlice"), ObjectMeta: meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		}},
	}
	if address.Is6() {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
			Name: new(p.Name), Port: new(p.TargetPort.IntVal), Protocol: new(p.Protocol),
		})
	}
	s.add(slice)
}

// remoteIP returns the address of the control plane, or an invalid one if it is a host name.
func (v *Values) remoteIP() netip.Addr {
	address, err := netip.ParseAddr(v.Remote.Address)
	if err != nil {
		return netip.Addr{}
	}
	return address.Unmap()
}

// injectionPath returns the path at which the control plane injects the pods of a cluster
// that it does not run in.
func (v *Values) injectionPath() string {
	switch {
	case v.Remote.InjectionPath != "":
		return v.Remote.InjectionPath
	case v.Configures():
		return "/inject"
	}
	path := "/inject/cluster/" + v.ClusterID
	if v.Network != "" {
		path += "/net/" + v.Network
	}
	return path
}

// checkRemote returns the faults of the use of a control plane in another cluster.
func (v *Values) checkRemote() []error {
	r := &v.Remote
	if !r.Enabled {
		if r.Address != "" {
			return []error{errors.New("global.remotePilotAddress needs profile remote")}
		}
		if r.Configures {
			return []error{errors.New("global.configCluster needs profile remote")}
		}
		return nil
	}
	var errs []error
	address := v.remoteIP()
	switch {
	case r.Address == "":
		errs = append(errs, errors.New("the address of the control plane is missing: give --control-plane CLUSTER=ADDRESS, or global.remotePilotAddress"))
	case address.IsValid() && (address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() || address.IsLinkLocalUnicast() || address.Zone() != ""):
		errs = append(errs, fmt.Errorf("pods do not reach the control plane at %s: want the address of its east-west gateway", r.Address))
	case !address.IsValid() && !mesh.IsDNSName(r.Address):
		errs = append(errs, fmt.Errorf("address %q of the control plane is neither an IP address nor a host name", r.Address))
	}
	if r.Cluster != "" && !mesh.ClusterID(r.Cluster).Valid() {
		errs = append(errs, fmt.Errorf("cluster %q of the control plane: want letters, digits, '.', '-' and '_', at most 63", r.Cluster))
	}
	switch {
	case r.InjectionPath != "" && !strings.HasPrefix(r.InjectionPath, "/inject/"):
		errs = append(errs, fmt.Errorf("istiodRemote.injectionPath %q: want /inject/cluster/CLUSTER/net/NETWORK", r.InjectionPath))
	case r.InjectionPath == "" && v.ClusterID == defaultCluster:
		errs = append(errs, errors.New("a cluster that uses the control plane of another one needs its own name: give --cluster-id, or global.multiCluster.clusterName"))
	case r.InjectionPath == "" && r.Cluster == v.ClusterID && !v.Configures():
		errs = append(errs, fmt.Errorf("the control plane is in cluster %s, which is this one", r.Cluster))
	}
	const here = "in a cluster without a control plane: leave it out"
	if v.Configures() {
		return append(errs, withoutEffect(here, []setting{{"--expose-istiod", v.ExposeControlPlane}})...)
	}
	return append(errs, withoutEffect(here+", and set it where the control plane is installed", []setting{
		{"--mesh-id, or global.meshID,", v.MeshID != ""},
		{"meshConfig", len(v.MeshConfig) > 0},
		{"a value of the injector", len(v.Injector) > 0},
		{"--expose-istiod", v.ExposeControlPlane || v.ExposeServices},
	})...)
}

// setting is a value that may be given.
type setting struct {
	name  string
	given bool
}

// withoutEffect returns an error for each given setting. where states where the setting has no
// effect, and the fix.
func withoutEffect(where string, settings []setting) []error {
	var errs []error
	for _, s := range settings {
		if s.given {
			errs = append(errs, fmt.Errorf("%s has no effect %s", s.name, where))
		}
	}
	return errs
}
