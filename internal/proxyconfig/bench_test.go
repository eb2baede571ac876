package proxyconfig

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"
)

// manyEndpoints is a /clusters?format=json of 5,000 clusters with 10 hosts
// each, as Envoy prints it: 43 MB.
func manyEndpoints() []byte {
	var b bytes.Buffer
	b.WriteString("{\n \"cluster_statuses\": [")
	for c := range 5000 {
		name := fmt.Sprintf("outbound|8080||service-%d.ns-%d.svc.cluster.local", c, c%10)
		fmt.Fprintf(&b, "%s\n  {\n   \"name\": %q,\n   \"added_via_api\": true,\n   \"host_statuses\": [", comma(c), name)
		for h := range 10 {
			fmt.Fprintf(&b, "%s\n    {\n     \"address\": {\n      \"socket_address\": {\n       \"address\": \"10.%d.%d.%d\",\n       \"port_value\": 8080\n      }\n     },\n     \"stats\": [",
				comma(h), c/256, c%256, h)
			for i, stat := range []string{"cx_connect_fail", "cx_total", "rq_error", "rq_success", "rq_timeout", "rq_total", "cx_active", "rq_active", "rq_pending_active"} {
				fmt.Fprintf(&b, "%s\n      {\n       \"name\": %q\n      }", comma(i), stat)
			}
			b.WriteString("\n     ],\n     \"health_status\": {\n      \"eds_health_status\": \"HEALTHY\"\n     },\n     \"weight\": 1,\n     \"locality\": {\n      \"region\": \"region1\",\n      \"zone\": \"zone-a\"\n     }\n    }")
		}
		fmt.Fprintf(&b, "\n   ],\n   \"observability_name\": %q,\n   \"eds_service_name\": %q\n  }", name+";", name)
	}
	b.WriteString("\n ]\n}\n")
	return b.Bytes()
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// BenchmarkEndpoints reads the dump as `pc endpoints` does. live-MB is the size of the
// rows.
func BenchmarkEndpoints(b *testing.B) {
	dump := manyEndpoints()
	live := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / 1e6
	}
	for _, bm := range []struct {
		name   string
		filter EndpointFilter
	}{
		{"all", EndpointFilter{}},
		{"one-cluster", EndpointFilter{Cluster: "outbound|8080||service-77.ns-7.svc.cluster.local"}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.SetBytes(int64(len(dump)))
			b.ReportAllocs()
			before := live()
			var rows []Endpoint
			for b.Loop() {
				var err error
				if rows, err = ReadEndpoints(bytes.NewReader(dump), bm.filter); err != nil {
					b.Fatal(err)
				}
				if err := EndpointTable(rows, false).Write(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(live()-before, "live-MB")
			runtime.KeepAlive(rows)
			runtime.KeepAlive(dump)
		})
	}
}

// BenchmarkClusters reads a config dump of 2,000 clusters, 35 MB.
func BenchmarkClusters(b *testing.B) {
	var dump bytes.Buffer
	fmt.Fprintf(&dump, `{"configs": [{"@type": %q, "dynamic_active_clusters": [`, clusterSection.typeURL)
	for c := range 2000 {
		fmt.Fprintf(&dump, "%s\n{\"cluster\": {\"@type\": \"type.googleapis.com/envoy.config.cluster.v3.Cluster\", \"name\": \"outbound|80||service-%d.ns.svc.cluster.local\", \"type\": \"EDS\", \"transport_socket_matches\": [", comma(c), c)
		for i := range 100 {
			fmt.Fprintf(&dump, "%s\n  {\n    \"name\": \"tls-mode-%d\",\n    \"match\": {\n     \"tlsMode\": \"istio\"\n    },\n    \"transport_socket\": {\n      \"name\": \"envoy.transport_sockets.raw_buffer\"\n    }\n  }", comma(i), i)
		}
		dump.WriteString("]}}")
	}
	dump.WriteString("]}]}")
	b.SetBytes(int64(dump.Len()))
	b.ReportAllocs()
	for b.Loop() {
		clusters, err := ReadClusters(bytes.NewReader(dump.Bytes()), ClusterFilter{}, false)
		if err != nil {
			b.Fatal(err)
		}
		if err := ClusterTable(clusters, false).Write(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
