package demo

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/examples"
	"github.com/meshctl/meshctl/internal/files"
)

// live holds the objects that a Kubernetes cluster would make, with variables such as
// ${cluster}. In a cluster's directory they have their own folder, apart from the files
// that a person writes.
//
//go:embed live
var live embed.FS

const helloworldEndpoints = "live/helloworld-endpoints.yaml"

// configFiles returns the files of a cluster's directory: the example with the addresses
// that Kubernetes would fill in, and the objects of live. app is the address of the
// application of the cluster's helloworld.
func (c *cluster) configFiles(app string) ([]files.File, error) {
	out, err := c.exampleFiles()
	if err != nil {
		return nil, err
	}
	entries, err := live.ReadDir("live")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := path.Join("live", e.Name())
		text, err := live.ReadFile(name)
		if err != nil {
			return nil, err
		}
		values := []map[string]string{{
			"cluster": string(c.id), "number": strconv.Itoa(c.number), "version": c.version, "app": app,
			"gateway": c.gateway.ip.String(), "server": c.server.ip.String(), "client": c.client.ip.String(),
		}}
		if e.Name() == "pods.yaml" { // a document for each pod
			if values, err = c.podValues(); err != nil {
				return nil, err
			}
		}
		var documents []string
		for _, v := range values {
			documents = append(documents, os.Expand(string(text), func(name string) string { return v[name] }))
		}
		out = append(out, files.File{Name: name, Data: []byte(strings.Join(documents, "---\n")), Mode: files.Public})
	}
	return out, nil
}

func (c *cluster) podValues() ([]map[string]string, error) {
	var out []map[string]string
	for _, p := range c.pods() {
		labels, err := json.Marshal(p.labels) // which is YAML, too
		if err != nil {
			return nil, err
		}
		out = append(out, map[string]string{
			"cluster": string(c.id), "workload": p.workload, "namespace": p.namespace, "account": p.account,
			"labels": string(labels), "ip": p.ip.String(),
		})
	}
	return out, nil
}

// exampleFiles returns the files that a person writes, with the address of the gateway:
// the load balancer's address in the Service, and the address to bind in the Gateway,
// because all gateways of the demo share this machine.
func (c *cluster) exampleFiles() ([]files.File, error) {
	type object = map[string]any
	overlays := map[string]any{
		"Service " + gatewayName:        object{"status": object{"loadBalancer": object{"ingress": []any{object{"ip": c.gateway.ip.String()}}}}},
		"Gateway cross-network-gateway": object{"spec": object{"servers": []any{object{"bind": c.gateway.ip.String()}}}},
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

// overlay merges each overlay into the object that its key names by kind and name, and
// deletes the key.
func overlay(data []byte, overlays map[string]any) ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var doc yaml.Node
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			err := encoder.Close()
			return out.Bytes(), err
		} else if err != nil {
			return nil, err
		}
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
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
		if err := encoder.Encode(&doc); err != nil {
			return nil, err
		}
	}
}

// merge merges one node into another: mappings by key, sequences by position.
func merge(to, from *yaml.Node) {
	switch {
	case to.Kind == yaml.MappingNode && from.Kind == yaml.MappingNode:
		for i := 0; i < len(from.Content); i += 2 {
			key, value := from.Content[i], from.Content[i+1]
			at := 0 // of the key
			for at < len(to.Content) && to.Content[at].Value != key.Value {
				at += 2
			}
			if at < len(to.Content) {
				merge(to.Content[at+1], value)
			} else {
				to.Content = append(to.Content, key, value)
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
