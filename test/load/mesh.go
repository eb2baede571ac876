package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeMesh writes Services with their EndpointSlices in ten namespaces.
func writeMesh(dir string, services, endpoints int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i := range services {
		if err := writeService(dir, i, endpoints); err != nil {
			return err
		}
	}
	return nil
}

// clusterName returns the name of a Service's cluster.
func clusterName(i int) string {
	return fmt.Sprintf("outbound|80||svc-%d.ns-%d.svc.cluster.local", i, i%10)
}

func serviceFile(dir string, i int) string {
	return filepath.Join(dir, fmt.Sprintf("service-%d.yaml", i))
}

func sliceFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("slice-%d.yaml", i)) }

// writeService writes a Service and its EndpointSlice to two files.
func writeService(dir string, i, endpoints int) error {
	if err := writeSlice(dir, i, endpoints, 0); err != nil {
		return err
	}
	return replace(serviceFile(dir, i), serviceText(i))
}

func serviceText(i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: svc-%[1]d
  namespace: ns-%[2]d
spec:
  clusterIP: 10.96.%[3]d.%[4]d
  selector: {app: svc-%[1]d}
  ports:
  - name: http
    port: 80
    targetPort: 8080
`, i, i%10, 1+i/250, i%250+1) // the API uses lower addresses itself
}

func removeService(dir string, i int) error {
	return errors.Join(os.Remove(serviceFile(dir, i)), os.Remove(sliceFile(dir, i)))
}

// replace writes a file atomically, as editors and kubelet do.
func replace(name, text string) error {
	if err := os.WriteFile(name+".tmp", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".tmp", name)
}

// writeSlice writes the EndpointSlice of a service.
func writeSlice(dir string, i, endpoints, version int) error {
	return replace(sliceFile(dir, i), sliceText(i, endpoints, version))
}

// sliceText returns the EndpointSlice of a service; version moves its last endpoint.
func sliceText(i, endpoints, version int) string {
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
	return b.String()
}
