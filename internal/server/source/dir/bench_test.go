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

// untilSynced ends the source that it is the sink of.
type untilSynced func()

func (untilSynced) Apply([]snapshot.Event)    {}
func (end untilSynced) Synced(mesh.ClusterID) { end() }

// BenchmarkFirstReading reads 1,000 Services of 10 endpoints in 2,000 files.
func BenchmarkFirstReading(b *testing.B) {
	folder := b.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 1000 {
		write(fmt.Sprintf("service-%d.yaml", i), fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: svc-%d\n  namespace: ns-%d\n"+
			"spec:\n  clusterIP: 10.96.%d.%d\n  selector:\n    app: svc-%d\n  ports:\n  - name: http\n    port: 80\n    targetPort: 8080\n",
			i, i%10, i/250, i%250+1, i))
		var endpoints strings.Builder
		for e := range 10 {
			fmt.Fprintf(&endpoints, "- addresses: [\"10.%d.%d.%d\"]\n  conditions: {ready: true}\n", 1+i/250, i%250, e+1)
		}
		write(fmt.Sprintf("slice-%d.yaml", i), fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: svc-%d-abc\n  namespace: ns-%d\n"+
			"  labels:\n    kubernetes.io/service-name: svc-%d\naddressType: IPv4\nports:\n- name: http\n  port: 8080\nendpoints:\n%s", i, i%10, i, &endpoints))
	}
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		s := dir.Source{Cluster: "c", Dir: folder, Now: time.Now}
		if err := s.Run(ctx, untilSynced(cancel)); err != nil {
			b.Fatal(err)
		}
	}
}
