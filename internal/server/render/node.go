package render

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// labelInject is the label of pods that get a proxy, or with "false" none.
const labelInject = "sidecar.istio.io/inject"

// Node is the xDS node of a proxy.
type Node = *corev3.Node

// ParseNode parses a node in YAML or JSON. It ignores unknown fields.
func ParseNode(data []byte) (Node, error) {
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, err
	}
	n := new(corev3.Node)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, n); err != nil {
		return nil, err
	}
	if n.GetId() == "" {
		return nil, errors.New("it has no id: want an xDS node, as in .bootstrap.node of meshctl pc bootstrap")
	}
	return n, nil
}

// Nodes returns the nodes of all proxies of the mesh, sorted by name and cluster: of pods
// with the labels of an injected proxy, of gateways, and of WorkloadEntries with a service
// account.
func (m *Mesh) Nodes() []Node {
	var out []Node
	for key, pod := range m.snapshot.Pods.All() {
		if m.hasProxy(pod) {
			out = append(out, m.node(key, pod))
		}
	}
	slices.SortFunc(out, func(a, b Node) int {
		return cmp.Or(cmp.Compare(nameOf(a), nameOf(b)), cmp.Compare(clusterOf(a), clusterOf(b)))
	})
	return out
}

// hasProxy reports whether a workload has a proxy.
func (m *Mesh) hasProxy(pod *snapshot.Pod) bool {
	switch {
	case len(pod.IPs) == 0, pod.HostNetwork, pod.Labels[labelInject] == "false":
		return false
	case pod.External:
		return pod.ServiceAccount != ""
	}
	return pod.Labels[mesh.LabelTLSMode] == mesh.TLSModeIstio || pod.Labels[labelInject] == "true" || pod.Proxyless || m.isGateway(pod)
}

// isGateway reports whether a Gateway object selects the pod.
func (m *Mesh) isGateway(pod *snapshot.Pod) bool {
	return slices.ContainsFunc(m.snapshot.GatewayConfigs, func(gw *snapshot.Gateway) bool {
		selector := gw.Spec.GetSelector()
		return len(selector) > 0 && snapshot.Selects(selector, pod.Labels)
	})
}

// Node returns the node of a pod or WorkloadEntry, as name.namespace. An empty cluster
// means any.
func (m *Mesh) Node(name string, cluster mesh.ClusterID) (Node, error) {
	var found []Node
	var known, clusters []string
	for key, pod := range m.snapshot.Pods.All() {
		id := pod.Name + "." + pod.Namespace
		if len(pod.IPs) == 0 || cluster != "" && pod.Cluster != cluster {
			continue
		}
		if known = append(known, id); id == name {
			found, clusters = append(found, m.node(key, pod)), append(clusters, string(pod.Cluster))
		}
	}
	slices.Sort(clusters)
	switch {
	case len(found) == 0 && !strings.Contains(name, "."):
		return nil, fmt.Errorf("proxy %q has no namespace: want name.namespace, or give --namespace", name)
	case len(found) == 0:
		in := ""
		if cluster != "" {
			in = " in cluster " + string(cluster)
		}
		return nil, fmt.Errorf("no pod or WorkloadEntry %q with an address%s%s", name, in, output.DidYouMean(name, known))
	case len(slices.Compact(clusters)) > 1:
		return nil, fmt.Errorf("%s is in clusters %s: name one with --cluster", name, strings.Join(clusters, " "))
	}
	return found[0], nil
}

// NodeOfOwner returns the node of a pod that an object such as a Deployment owns. An empty
// cluster means any.
func (m *Mesh) NodeOfOwner(name, namespace string, cluster mesh.ClusterID) (Node, error) {
	var pods []string
	for _, pod := range m.snapshot.Pods.All() {
		if pod.Workload == name && pod.Namespace == namespace && len(pod.IPs) > 0 && (cluster == "" || pod.Cluster == cluster) {
			pods = append(pods, pod.Name)
		}
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pod with an address in namespace %s belongs to a workload %q", namespace, name)
	}
	return m.Node(slices.Min(pods)+"."+namespace, cluster)
}

// node returns the node that the agent of a workload sends.
func (m *Mesh) node(key string, pod *snapshot.Pod) Node {
	kind := mesh.Sidecar
	if m.isGateway(pod) {
		kind = mesh.Router
	}
	text := func(s string) *structpb.Value { return structpb.NewStringValue(s) }
	ips := make([]string, len(pod.IPs))
	for i, ip := range pod.IPs {
		ips[i] = ip.String()
	}
	labels := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for k, v := range pod.Labels {
		labels.Fields[k] = text(v)
	}
	fields := map[string]*structpb.Value{
		"CLUSTER_ID": text(string(pod.Cluster)), "NAMESPACE": text(pod.Namespace), "SERVICE_ACCOUNT": text(pod.ServiceAccount),
		"ISTIO_VERSION": text(mesh.AgentVersion("")), "INSTANCE_IPS": text(strings.Join(ips, ",")), "LABELS": structpb.NewStructValue(labels),
	}
	if pod.Proxyless {
		fields["GENERATOR"] = text("grpc")
	} else {
		fields[mesh.MetadataMetrics] = text("true")
	}
	if key == snapshot.WorkloadEntryKey(pod.Cluster, pod.Namespace, pod.Name) {
		fields["WORKLOAD_ENTRY"] = text(pod.Name)
	}
	id := mesh.NodeID{Type: kind, IP: pod.IPs[0], Name: pod.Name, Namespace: pod.Namespace, Domain: pod.Namespace + ".svc." + m.snapshot.Mesh.Domain}
	return &corev3.Node{Id: id.String(), Metadata: &structpb.Struct{Fields: fields}}
}

func nameOf(n Node) string { id, _ := mesh.ParseNodeID(n.GetId()); return id.ProxyID() }

func clusterOf(n Node) string {
	return n.GetMetadata().GetFields()["CLUSTER_ID"].GetStringValue()
}
