package demo

import (
	"embed"
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

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
	ip := c.gateway.ip.String()
	addresses := strings.NewReplacer(
		"      targetPort: 15443\n", "      targetPort: 15443\nstatus:\n  loadBalancer:\n    ingress:\n      - ip: "+ip+"\n",
		"  servers:\n    - port:\n", "  servers:\n    - bind: "+ip+"\n      port:\n")
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
		out = append(out, files.File{Name: e.Name(), Data: []byte(addresses.Replace(string(data))), Mode: files.Public})
	}
	return out, nil
}
