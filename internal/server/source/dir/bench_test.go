package dir_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dir"
)

// untilSynced is a sink that ends its source when it is synced.
type untilSynced func()

func (untilSynced) Apply([]snapshot.Event)    {}
func (end untilSynced) Synced(mesh.ClusterID) { end() }

// BenchmarkFirstReading reads 1,000 Services of 10 endpoints in 2,000 files.
func BenchmarkFirstReading(b *testing.B) {
	folder := b.TempDir()
	writeServices(b, folder)
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		s := dir.Source{Cluster: "c", Dir: folder, Now: time.Now}
		if err := s.Run(ctx, untilSynced(cancel)); err != nil {
			b.Fatal(err)
		}
	}
}

func writeServices(b *testing.B, folder string) {
	b.Helper()
	for i := range 1000 {
		write(b, filepath.Join(folder, fmt.Sprintf("service-%d.yaml", i)), fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: svc-%d\n  namespace: ns-%d\n"+
			"spec:\n  clusterIP: 10.96.%d.%d\n  selector:\n    app: svc-%d\n  ports:\n  - name: http\n    port: 80\n    targetPort: 8080\n",
			i, i%10, i/250, i%250+1, i))
		write(b, filepath.Join(folder, fmt.Sprintf("slice-%d.yaml", i)), endpoints(i, 0))
	}
}

// endpoints returns an EndpointSlice. The version changes its last endpoint.
func endpoints(i, version int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: svc-%d-abc\n  namespace: ns-%d\n"+
		"  labels:\n    kubernetes.io/service-name: svc-%d\naddressType: IPv4\nports:\n- name: http\n  port: 8080\nendpoints:\n", i, i%10, i)
	for e := range 10 {
		last := e + 1
		if e == 9 {
			last += version
		}
		fmt.Fprintf(&b, "- addresses: [\"10.%d.%d.%d\"]\n  conditions: {ready: true}\n", 1+i/250, i%250, last)
	}
	return b.String()
}

func write(b *testing.B, name, text string) {
	b.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

// applied is a sink that sends a value for each batch.
type applied chan struct{}

func (c applied) Apply([]snapshot.Event) { c <- struct{}{} }
func (applied) Synced(mesh.ClusterID)    {}

// BenchmarkChange changes one endpoint by renaming a file, and waits for the event.
func BenchmarkChange(b *testing.B) {
	folder := b.TempDir()
	writeServices(b, folder)
	ctx, cancel := context.WithCancel(b.Context())
	events, done := make(applied, 1), make(chan error)
	go func() { done <- (&dir.Source{Cluster: "c", Dir: folder, Now: time.Now}).Run(ctx, events) }()
	<-events
	name := filepath.Join(folder, "slice-1.yaml")
	version := 0
	for b.Loop() {
		version++
		write(b, name+".tmp", endpoints(1, version%200))
		if err := os.Rename(name+".tmp", name); err != nil {
			b.Fatal(err)
		}
		<-events
	}
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
