package create

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

const (
	// maxAddresses bounds the number of addresses. Services may name half of them, so that they do
	// not take the place of others.
	maxAddresses = 32
	// usualPort is the default port of API servers, minikubePort that in minikube.
	usualPort    = 6443
	minikubePort = 8443
)

// addressFinder collects distinct addresses, the most trusted first.
type addressFinder struct {
	FoundAddresses
	api   *kube.Client
	ports []int32 // of the endpoints of the API server
}

// FoundAddresses are the possible addresses and CAs of an API server.
type FoundAddresses struct {
	Addresses []Address
	CAs       []ServerCA
	Unread    []error // one for each unreadable source
}

// FindAddresses collects the addresses in the kubeconfig and in the cluster.
func FindAddresses(ctx context.Context, config *rest.Config) (FoundAddresses, error) {
	api, err := kube.NewClient(config)
	if err != nil {
		return FoundAddresses{}, err
	}
	f := &addressFinder{api: api}
	f.add(config.Host, "kubeconfig")
	for i := range f.Addresses {
		f.Addresses[i].Chosen = true
	}
	f.clusterInfo(ctx)
	f.loadBalancers(ctx)
	f.slices(ctx)
	f.nodes(ctx)
	return f.FoundAddresses, nil
}

func (f *addressFinder) add(server, source string) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || len(f.Addresses) >= maxAddresses {
		return
	}
	server = u.Scheme + "://" + u.Host + strings.TrimSuffix(u.Path, "/")
	same := func(c Address) bool { return c.URL == server }
	if !slices.ContainsFunc(f.Addresses, same) {
		f.Addresses = append(f.Addresses, Address{URL: server, Source: source})
	}
}

func (f *addressFinder) addHost(host string, port int32, source string) {
	f.add("https://"+net.JoinHostPort(host, strconv.Itoa(int(port))), source)
}

func (f *addressFinder) couldNot(what string, err error) {
	f.Unread = append(f.Unread, fmt.Errorf("read %s: %w", what, err))
}

// clusterInfo reads the kubeconfig that kubeadm publishes for new nodes.
func (f *addressFinder) clusterInfo(ctx context.Context) {
	const name = "cluster-info"
	info, err := f.api.ConfigMaps(metav1.NamespacePublic).Get(ctx, name)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			f.couldNot("ConfigMap kube-public/"+name, err)
		}
		return
	}
	server, err := remotesecret.PublishedServer([]byte(info.Data["kubeconfig"]))
	if err != nil {
		f.couldNot("ConfigMap kube-public/"+name, err)
		return
	}
	f.add(server.Server, name)
	if len(server.CertificateAuthorityData) > 0 {
		f.CAs = append(f.CAs, ServerCA{Name: name, PEM: server.CertificateAuthorityData})
	}
}

// slices reads the endpoints of the Service kubernetes.
func (f *addressFinder) slices(ctx context.Context) {
	const name = "kubernetes"
	list, err := f.api.EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=" + name, Limit: maxAddresses,
	})
	if err != nil {
		f.couldNot("EndpointSlices of Service default/"+name, err)
		return
	}
	for _, s := range list.Items {
		for _, p := range s.Ports {
			if p.Port == nil {
				continue
			}
			f.ports = append(f.ports, *p.Port)
			for _, e := range s.Endpoints {
				for _, address := range e.Addresses {
					f.addHost(address, *p.Port, "EndpointSlice "+s.Name)
				}
			}
		}
	}
}

// loadBalancers reads Services that expose the API server, as in virtual and managed
// clusters.
func (f *addressFinder) loadBalancers(ctx context.Context) {
	list, err := f.api.Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "spec.type=" + string(corev1.ServiceTypeLoadBalancer), Limit: 500,
	})
	if err != nil {
		f.couldNot("Services of type LoadBalancer", err)
		return
	}
	for _, s := range list.Items {
		own := s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes"
		for _, p := range s.Spec.Ports {
			if !own && (p.Port != usualPort || len(f.Addresses) >= maxAddresses/2) {
				continue
			}
			for _, ingress := range s.Status.LoadBalancer.Ingress {
				for _, host := range []string{ingress.Hostname, ingress.IP} {
					if host != "" {
						f.addHost(host, p.Port, "Service "+s.Namespace+"/"+s.Name)
					}
				}
			}
		}
	}
}

// nodes reads the addresses of control-plane nodes, and the host names that kind and
// k3d give them.
func (f *addressFinder) nodes(ctx context.Context) {
	for _, role := range []string{"control-plane", "master"} {
		list, err := f.api.Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/" + role, Limit: maxAddresses})
		if err != nil {
			f.couldNot("Nodes", err)
			return
		}
		for _, n := range list.Items {
			f.node(&n)
		}
		if len(list.Items) > 0 {
			return
		}
	}
}

func (f *addressFinder) node(n *corev1.Node) {
	port := int32(usualPort)
	switch {
	case n.Labels["minikube.k8s.io/name"] != "":
		port = minikubePort
	case len(f.ports) > 0:
		port = f.ports[0]
	}
	for _, a := range n.Status.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeExternalDNS:
			f.addHost(a.Address, port, "Node "+n.Name+" "+string(a.Type))
		case corev1.NodeHostName, corev1.NodeInternalDNS:
		}
	}
	if strings.HasPrefix(n.Spec.ProviderID, "kind://") {
		f.addHost(n.Name, usualPort, "container of kind")
	}
	if cluster, ok := strings.CutPrefix(n.Name, "k3d-"); ok {
		if cluster, _, ok = strings.Cut(cluster, "-server-"); ok {
			f.addHost("k3d-"+cluster+"-serverlb", usualPort, "container of k3d")
		}
	}
}
