package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// services describes Services, each with one EndpointSlice, that are spread over namespaces.
type services struct {
	namespaces, endpoints int
	onDemand              bool // proxies request virtual hosts, whose names have no port
}

// write writes the Services from first to before end to a directory, which it creates.
func (s services) write(dir string, first, end int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i := first; i < end; i++ {
		if err := s.writeService(dir, i); err != nil {
			return err
		}
	}
	return nil
}

// namespace returns the namespace of a Service.
func (s services) namespace(i int) string { return fmt.Sprintf("ns-%d", i%s.namespaces) }

// cluster returns the name of a Service's cluster.
func (s services) cluster(i int) string {
	return fmt.Sprintf("outbound|80||svc-%d.%s.svc.cluster.local", i, s.namespace(i))
}

// resource returns the name of the resource of a type that holds a Service.
func (s services) resource(typ string, i int) string {
	switch typ {
	case xdswire.RouteType:
		return "80"
	case xdswire.VirtualHostType:
		name := "80/" + strings.TrimPrefix(s.cluster(i), "outbound|80||")
		if s.onDemand {
			return name
		}
		return name + ":80"
	}
	return s.cluster(i)
}

func serviceFile(dir string, i int) string {
	return filepath.Join(dir, fmt.Sprintf("service-%d.yaml", i))
}

func sliceFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("slice-%d.yaml", i)) }

// writeService writes a Service and its EndpointSlice to two files.
func (s services) writeService(dir string, i int) error {
	if err := s.writeSlice(dir, i, 0); err != nil {
		return err
	}
	return replace(serviceFile(dir, i), s.serviceText(i))
}

func (s services) serviceText(i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: svc-%[1]d
  namespace: %[2]s
spec:
  clusterIP: 10.96.%[3]d.%[4]d
  selector: {app: svc-%[1]d}
  ports:
  - name: http
    port: 80
    targetPort: 8080
`, i, s.namespace(i), 1+i/250, i%250+1) // the API uses lower addresses itself
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
func (s services) writeSlice(dir string, i, version int) error {
	return replace(sliceFile(dir, i), s.sliceText(i, version))
}

// sliceText returns the EndpointSlice of a service; version moves its last endpoint.
func (s services) sliceText(i, version int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: svc-%d-abc
  namespace: %s
  labels:
    kubernetes.io/service-name: svc-%d
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
`, i, s.namespace(i), i)
	for e := range s.endpoints {
		last := e
		if e == s.endpoints-1 {
			last = e + version
		}
		fmt.Fprintf(&b, "- addresses: [\"10.%d.%d.%d\"]\n  conditions: {ready: true}\n", 1+i/250, i%250, last+1)
	}
	return b.String()
}
