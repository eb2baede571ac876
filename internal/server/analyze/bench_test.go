package analyze_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// BenchmarkCheck checks a mesh of 5,000 services with three pods each, 1,000 of which have a
// VirtualService and a DestinationRule.
func BenchmarkCheck(b *testing.B) {
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, `apiVersion: v1
kind: Service
metadata: {name: s%[1]d, namespace: n%[2]d}
spec: {clusterIP: 10.%[3]d.%[4]d.1, selector: {app: s%[1]d}, ports: [{name: http, port: 8080}, {name: grpc, port: 9090}]}
---
`, i, i%100, i/250, i%250)
		for j := range 3 {
			fmt.Fprintf(&text, `apiVersion: v1
kind: Pod
metadata: {name: s%[1]d-%[5]d, namespace: n%[2]d, labels: {app: s%[1]d, version: v1}}
spec: {containers: []}
status: {phase: Running, podIP: 10.%[3]d.%[4]d.%[6]d}
---
`, i, i%100, 100+i/250, i%250, j, j+2)
		}
		if i%5 == 0 {
			fmt.Fprintf(&text, `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%[1]d, namespace: n%[2]d}
spec: {hosts: [s%[1]d], http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: s%[1]d, subset: v1, port: {number: 8080}}}]}, {route: [{destination: {host: s%[1]d}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: s%[1]d, namespace: n%[2]d}
spec: {host: s%[1]d, trafficPolicy: {tls: {mode: DISABLE}}, subsets: [{name: v1, labels: {version: v1}}]}
---
`, i, i%100)
		}
	}
	var files []load.File
	var part strings.Builder
	n := 0
	for doc := range strings.SplitSeq(text.String(), "---\n") {
		part.WriteString(doc + "---\n")
		if n++; n%10_000 == 0 {
			files = append(files, load.File{Name: fmt.Sprint(n), Text: []byte(part.String())})
			part.Reset()
		}
	}
	files = append(files, load.File{Name: "last", Text: []byte(part.String())})
	start := time.Now()
	m, err := load.Read(b.Context(), load.Config{Clusters: []load.Cluster{{ID: "c1", Files: files}}, Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(start).Seconds(), "s/read")
	b.ReportAllocs()
	for b.Loop() {
		analyze.Check(m.Contents, analyze.Options{})
	}
}
