package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/examples"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// The parts of Kubernetes' and Istio's objects that the demo fills in.
type (
	object struct {
		APIVersion string   `yaml:"apiVersion"`
		Kind       string   `yaml:"kind"`
		Metadata   metadata `yaml:"metadata"`
		Spec       any      `yaml:"spec,omitempty"`
		Status     any      `yaml:"status,omitempty"`
	}
	metadata struct {
		Name            string            `yaml:"name"`
		Namespace       string            `yaml:"namespace,omitempty"`
		Labels          map[string]string `yaml:"labels,omitempty"`
		OwnerReferences []ownerReference  `yaml:"ownerReferences,omitempty"`
	}
	ownerReference struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Name       string `yaml:"name"`
		UID        string `yaml:"uid"`
		Controller bool   `yaml:"controller"`
	}

	podSpec struct {
		ServiceAccountName string `yaml:"serviceAccountName"`
		NodeName           string `yaml:"nodeName"`
	}
	podStatus struct {
		Phase  string  `yaml:"phase"`
		PodIP  string  `yaml:"podIP"`
		PodIPs []podIP `yaml:"podIPs"`
	}
	podIP struct {
		IP string `yaml:"ip"`
	}

	endpointSlice struct {
		APIVersion  string          `yaml:"apiVersion"`
		Kind        string          `yaml:"kind"`
		Metadata    metadata        `yaml:"metadata"`
		AddressType string          `yaml:"addressType"`
		Ports       []slicePort     `yaml:"ports"`
		Endpoints   []sliceEndpoint `yaml:"endpoints"`
	}
	slicePort struct {
		Name     string `yaml:"name"`
		Port     uint16 `yaml:"port"`
		Protocol string `yaml:"protocol"`
	}
	sliceEndpoint struct {
		Addresses  []string   `yaml:"addresses"`
		Conditions conditions `yaml:"conditions"`
		NodeName   string     `yaml:"nodeName"`
		TargetRef  targetRef  `yaml:"targetRef"`
	}
	conditions struct {
		Ready bool `yaml:"ready"`
	}
	targetRef struct {
		Kind      string `yaml:"kind"`
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	}

	sidecarSpec struct {
		WorkloadSelector labelSelector    `yaml:"workloadSelector"`
		Ingress          []sidecarIngress `yaml:"ingress,omitempty"`
		Egress           []sidecarEgress  `yaml:"egress"`
	}
	labelSelector struct {
		Labels map[string]string `yaml:"labels"`
	}
	sidecarIngress struct {
		Port            sidecarPort `yaml:"port"`
		Bind            string      `yaml:"bind"`
		DefaultEndpoint string      `yaml:"defaultEndpoint"`
	}
	sidecarEgress struct {
		Port  *sidecarPort `yaml:"port,omitempty"`
		Bind  string       `yaml:"bind,omitempty"`
		Hosts []string     `yaml:"hosts"`
	}
	sidecarPort struct {
		Number   uint16 `yaml:"number"`
		Protocol string `yaml:"protocol"`
		Name     string `yaml:"name"`
	}
)

// What is laid over the objects that a person wrote.
type (
	serviceStatus struct {
		Status struct {
			LoadBalancer struct {
				Ingress []podIP `yaml:"ingress"`
			} `yaml:"loadBalancer"`
		} `yaml:"status"`
	}
	gatewayBind struct {
		Spec struct {
			Servers []serverBind `yaml:"servers"`
		} `yaml:"spec"`
	}
	serverBind struct {
		Bind string `yaml:"bind"`
	}
)

// Files below a cluster's directory. What a cluster fills in is in a folder
// of its own, apart from what a person writes.
const (
	liveDir             = "live"
	helloworldEndpoints = liveDir + "/helloworld-endpoints.yaml"
)

// configFiles are all files of a cluster's directory: the example's, with the
// addresses that a cluster would fill in, and the objects that a cluster
// makes. app is where the application of the cluster's helloworld listens.
func (c *cluster) configFiles(app string) ([]files.File, error) {
	out, err := c.exampleFiles()
	if err != nil {
		return nil, err
	}
	var pods, sidecars []any
	for _, p := range c.pods() {
		pods = append(pods, p.object())
	}
	sidecars = append(sidecars, c.serverSidecar(app), c.clientSidecar())
	for _, f := range []struct {
		name    string
		objects []any
	}{
		{liveDir + "/nodes.yaml", []any{c.node()}},
		{liveDir + "/pods.yaml", pods},
		{liveDir + "/sidecars.yaml", sidecars},
		{liveDir + "/gateway-endpoints.yaml", []any{c.slice(c.gateway, gatewayName, []slicePort{
			{"status-port", mesh.PortEnvoyReadiness, "TCP"}, {"tls", mesh.PortEastWest, "TCP"},
		})}},
		{helloworldEndpoints, []any{c.slice(c.server, helloworld, []slicePort{{"http", helloworldPort, "TCP"}})}},
	} {
		data, err := encode(f.objects...)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", f.name, c.id, err)
		}
		out = append(out, files.File{Name: f.name, Data: data, Mode: files.Public})
	}
	return out, nil
}

func (c *cluster) nodeName() string { return string(c.id) + "-node" }

func (c *cluster) node() object {
	return object{APIVersion: "v1", Kind: "Node", Metadata: metadata{
		Name: c.nodeName(),
		Labels: map[string]string{
			mesh.LabelRegion: fmt.Sprintf("region%d", c.number), mesh.LabelZone: fmt.Sprintf("zone%d", c.number),
		},
	}}
}

func (p pod) object() object {
	replicaSet := p.workload + "-" + podTemplateHash
	return object{
		APIVersion: "v1", Kind: "Pod",
		Metadata: metadata{
			Name: p.workload, Namespace: p.namespace, Labels: p.labels,
			OwnerReferences: []ownerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: replicaSet, UID: replicaSet, Controller: true,
			}},
		},
		Spec:   podSpec{ServiceAccountName: p.account, NodeName: string(p.cluster) + "-node"},
		Status: podStatus{Phase: "Running", PodIP: p.ip.String(), PodIPs: []podIP{{p.ip.String()}}},
	}
}

func (c *cluster) slice(p pod, service string, ports []slicePort) endpointSlice {
	return endpointSlice{
		APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice",
		Metadata: metadata{
			Name: service + "-" + podTemplateHash, Namespace: p.namespace,
			Labels: map[string]string{mesh.LabelServiceName: service},
		},
		AddressType: "IPv4",
		Ports:       ports,
		Endpoints: []sliceEndpoint{{
			Addresses:  []string{p.ip.String()},
			Conditions: conditions{Ready: true},
			NodeName:   c.nodeName(),
			TargetRef:  targetRef{Kind: "Pod", Name: p.workload, Namespace: p.namespace},
		}},
	}
}

func sidecar(p pod, spec sidecarSpec) object {
	spec.WorkloadSelector = labelSelector{Labels: map[string]string{"app": p.labels["app"]}}
	return object{
		APIVersion: "networking.istio.io/v1", Kind: "Sidecar",
		Metadata: metadata{Name: p.labels["app"], Namespace: p.namespace},
		Spec:     spec,
	}
}

// serverSidecar takes requests on the pod's address and asks for nothing.
func (c *cluster) serverSidecar(app string) object {
	return sidecar(c.server, sidecarSpec{
		Ingress: []sidecarIngress{{
			Port:            sidecarPort{helloworldPort, "HTTP", "http"},
			Bind:            c.server.ip.String(),
			DefaultEndpoint: app,
		}},
		Egress: []sidecarEgress{{Hosts: []string{"~/*"}}},
	})
}

// clientSidecar is a forward proxy on the pod's address.
func (c *cluster) clientSidecar() object {
	return sidecar(c.client, sidecarSpec{
		Egress: []sidecarEgress{{
			Port:  &sidecarPort{clientProxyPort, "HTTP_PROXY", "http-proxy"},
			Bind:  c.client.ip.String(),
			Hosts: []string{sampleNamespace + "/*"},
		}},
	})
}

// exampleFiles are the files that a person writes, with the gateway's address
// filled in: the load balancer's in the Service, and in the Gateway the one
// to bind, because all gateways of the demo share this machine.
func (c *cluster) exampleFiles() ([]files.File, error) {
	var status serviceStatus
	status.Status.LoadBalancer.Ingress = []podIP{{c.gateway.ip.String()}}
	var bind gatewayBind
	bind.Spec.Servers = []serverBind{{c.gateway.ip.String()}}
	overlays := map[string]any{
		"Service " + gatewayName:        status,
		"Gateway cross-network-gateway": bind,
	}

	dir := path.Join("two-clusters", string(c.id))
	entries, err := fs.ReadDir(examples.TwoClusters, dir)
	if err != nil {
		return nil, err
	}
	var out []files.File
	for _, e := range entries {
		data, err := fs.ReadFile(examples.TwoClusters, path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if data, err = overlay(data, overlays); err != nil {
			return nil, fmt.Errorf("example %s: %w", path.Join(dir, e.Name()), err)
		}
		out = append(out, files.File{Name: e.Name(), Data: data, Mode: files.Public})
	}
	if len(overlays) > 0 {
		return nil, fmt.Errorf("example %s lacks the objects of the gateway", dir)
	}
	return out, nil
}

// overlay lays each of the overlays over the object that it names by kind and
// name, and takes it off the map.
func overlay(data []byte, overlays map[string]any) ([]byte, error) {
	var docs []any
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var doc yaml.Node
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		var o object
		if err := doc.Decode(&o); err != nil {
			return nil, err
		}
		key := o.Kind + " " + o.Metadata.Name
		if over, ok := overlays[key]; ok {
			var node yaml.Node
			if err := node.Encode(over); err != nil {
				return nil, err
			}
			merge(doc.Content[0], &node)
			delete(overlays, key)
		}
		docs = append(docs, &doc)
	}
	return encode(docs...)
}

// merge lays one node over another: mappings by key, sequences by position.
func merge(to, from *yaml.Node) {
	switch {
	case to.Kind == yaml.MappingNode && from.Kind == yaml.MappingNode:
		for i := 0; i < len(from.Content); i += 2 {
			if value := lookup(to, from.Content[i].Value); value != nil {
				merge(value, from.Content[i+1])
			} else {
				to.Content = append(to.Content, from.Content[i], from.Content[i+1])
			}
		}
	case to.Kind == yaml.SequenceNode && from.Kind == yaml.SequenceNode:
		for i, value := range from.Content {
			if i < len(to.Content) {
				merge(to.Content[i], value)
			} else {
				to.Content = append(to.Content, value)
			}
		}
	default:
		*to = *from
	}
}

func lookup(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// encode writes the objects as one YAML stream.
func encode(objects ...any) ([]byte, error) {
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	for _, o := range objects {
		if err := enc.Encode(o); err != nil {
			return nil, err
		}
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
