package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeMesh writes Services and EndpointSlices, a file for each, in ten
// namespaces.
func writeMesh(dir string, services, endpoints int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i := range services {
		svc := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: svc-%d
  namespace: ns-%d
spec:
  clusterIP: 10.96.%d.%d
  selector:
    app: svc-%d
  ports:
  - name: http
    port: 80
    targetPort: 8080
`, i, i%10, i/250, i%250+1, i)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("service-%d.yaml", i)), []byte(svc), 0o600); err != nil {
			return err
		}
		if err := writeSlice(dir, i, endpoints, 0); err != nil {
			return err
		}
	}
	return nil
}

// writeSlice writes the EndpointSlice of one service; version moves its last
// endpoint. The file is replaced at once, as an editor or kubelet does it.
func writeSlice(dir string, i, endpoints, version int) error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: svc-%d-abc
  namespace: ns-%d
  labels:
    kubernetes.io/service-name: svc-%d
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
`, i, i%10, i)
	for e := range endpoints {
		last := e
		if e == endpoints-1 {
			last = e + version
		}
		fmt.Fprintf(&b, "- addresses: [\"10.%d.%d.%d\"]\n  conditions: {ready: true}\n", 1+i/250, i%250, last+1)
	}
	name := filepath.Join(dir, fmt.Sprintf("slice-%d.yaml", i))
	if err := os.WriteFile(name+".tmp", []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".tmp", name)
}
