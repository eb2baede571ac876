package metrics

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

// ownLabels holds the labels of the workload of the tests as the source and as the destination.
const (
	ownSource = `source_workload="web-v1",source_canonical_service="web",source_canonical_revision="v1",source_workload_namespace="shop",` +
		`source_principal="spiffe://td/ns/shop/sa/web",source_app="web \"1\"",source_version="unknown",source_cluster="c1"`
	ownDestination = `destination_workload="web-v1",destination_canonical_service="web",destination_canonical_revision="v1",destination_workload_namespace="shop",` +
		`destination_principal="spiffe://td/ns/shop/sa/web",destination_app="web \"1\"",destination_version="unknown",destination_cluster="c1"`
	reviews = `destination_workload="reviews-v1",destination_canonical_service="reviews",destination_canonical_revision="latest",destination_workload_namespace="books",` +
		`destination_principal="spiffe://td/ns/books/sa/reviews",destination_app="reviews",destination_version="latest",destination_cluster="c2",` +
		`destination_service="reviews.books.svc.cluster.local",destination_service_name="reviews",destination_service_namespace="books"`
	strangers = `source_workload="unknown",source_canonical_service="unknown",source_canonical_revision="unknown",`
	toReviews = `reporter="source",own_identity="spiffe://td/ns/shop/sa/web",peer_identity="spiffe://td/ns/books/sa/reviews",workload="reviews-v1;books;reviews;;c2"`
)

// TestStandardMetrics: the converter makes Istio's metrics from Envoy's lines, and leaves all other
// lines.
func TestStandardMetrics(t *testing.T) {
	own := Workload{Namespace: "shop", WorkloadLabels: mesh.WorkloadLabels{Name: "web-v1", Service: "web", Revision: "v1", App: `web "1"`, Cluster: "c1"}}
	for name, tc := range map[string]struct{ envoy, want string }{
		"others": {
			"# TYPE envoy_x counter\nenvoy_x{} 1\n# TYPE envoy_istio_build gauge\nenvoy_istio_build{a=\"b\"} 1\n",
			"# TYPE envoy_x counter\nenvoy_x{} 1\n# TYPE envoy_istio_build gauge\nenvoy_istio_build{a=\"b\"} 1\n",
		},
		"client, several ports": {
			"# TYPE envoy_istio_requests_total counter\n" +
				`envoy_istio_requests_total{` + toReviews + `,cluster="outbound|80||reviews.books.svc.cluster.local",response_flags="-",response_code="200",grpc_response_status=""} 2` + "\n" +
				`envoy_istio_requests_total{` + toReviews + `,cluster="outbound|81|v1|reviews.books.svc.cluster.local",response_flags="-",response_code="200",grpc_response_status=""} 3` + "\n" +
				"# TYPE envoy_z gauge\nenvoy_z 1\n",
			"# TYPE istio_requests_total counter\n" +
				`istio_requests_total{reporter="source",` + ownSource + `,` + reviews + `,request_protocol="http",response_code="200",response_flags="-",connection_security_policy="unknown"} 5` + "\n" +
				"# TYPE envoy_z gauge\nenvoy_z 1\n",
		},
		"server": {
			"# TYPE envoy_istio_requests_total counter\n" +
				`envoy_istio_requests_total{reporter="destination",own_identity="spiffe://td/ns/shop/sa/web",peer_identity="spiffe://td/ns/a/sa/b",cluster="inbound|80||web.shop.svc.cluster.local",response_flags="UF",response_code="200",grpc_response_status="14"} 1` + "\n" +
				`envoy_istio_requests_total{reporter="destination",own_identity="",peer_identity="",cluster="InboundPassthroughCluster",response_flags="",response_code="503",grpc_response_status=""} 1` + "\n",
			"# TYPE istio_requests_total counter\n" +
				`istio_requests_total{reporter="destination",` + strangers + `source_workload_namespace="a",source_principal="spiffe://td/ns/a/sa/b",source_app="unknown",source_version="unknown",` +
				ownDestination + `,destination_service="web.shop.svc.cluster.local",destination_service_name="web",destination_service_namespace="shop",` +
				`request_protocol="grpc",response_code="200",grpc_response_status="14",response_flags="UF",connection_security_policy="mutual_tls"} 1` + "\n" +
				`istio_requests_total{reporter="destination",` + strangers + `source_workload_namespace="unknown",source_principal="unknown",source_app="unknown",source_version="unknown",` +
				strings.Replace(ownDestination, "spiffe://td/ns/shop/sa/web", "unknown", 1) + `,destination_service="unknown",destination_service_name="InboundPassthroughCluster",destination_service_namespace="shop",` +
				`request_protocol="http",response_code="503",response_flags="-",connection_security_policy="none"} 1` + "\n",
		},
		"histogram": {
			"# TYPE envoy_istio_request_bytes histogram\n" +
				`envoy_istio_request_bytes_bucket{` + toReviews + `,cluster="outbound|80||reviews.books.svc.cluster.local",response_code="200",le="0.5"} 1` + "\n" +
				`envoy_istio_request_bytes_bucket{` + toReviews + `,cluster="outbound|80||reviews.books.svc.cluster.local",response_code="200",le="+Inf"} 2` + "\n" +
				`envoy_istio_request_bytes_sum{` + toReviews + `,cluster="outbound|80||reviews.books.svc.cluster.local",response_code="200"} 150.5` + "\n" +
				`envoy_istio_request_bytes_count{` + toReviews + `,cluster="outbound|80||reviews.books.svc.cluster.local",response_code="200"} 2` + "\n" +
				`envoy_istio_request_bytes_bucket{` + toReviews + `,cluster="outbound_.80_._.reviews.books.svc.cluster.local",response_code="200",le="0.5"} 10` + "\n" +
				`envoy_istio_request_bytes_bucket{` + toReviews + `,cluster="outbound_.80_._.reviews.books.svc.cluster.local",response_code="200",le="+Inf"} 10` + "\n",
			"# TYPE istio_request_bytes histogram\n" +
				`istio_request_bytes_bucket{reporter="source",` + ownSource + `,` + reviews + `,request_protocol="http",response_code="200",response_flags="-",connection_security_policy="unknown",le="0.5"} 11` + "\n" +
				`istio_request_bytes_bucket{reporter="source",` + ownSource + `,` + reviews + `,request_protocol="http",response_code="200",response_flags="-",connection_security_policy="unknown",le="+Inf"} 12` + "\n" +
				`istio_request_bytes_sum{reporter="source",` + ownSource + `,` + reviews + `,request_protocol="http",response_code="200",response_flags="-",connection_security_policy="unknown"} 150.5` + "\n" +
				`istio_request_bytes_count{reporter="source",` + ownSource + `,` + reviews + `,request_protocol="http",response_code="200",response_flags="-",connection_security_policy="unknown"} 2` + "\n",
		},
		"overrides, of a service outside": {
			"# TYPE envoy_istio_tcp_sent_bytes_total counter\n" +
				`envoy_istio_tcp_sent_bytes_total{reporter="source",cluster="outbound|80||db.example.com",response_flags="-",set_zone="a,\"b\"",set_source_app="",removed="source_principal,source_workload,source_canonical_service,source_canonical_revision,source_workload_namespace,source_cluster,destination_app,destination_version,destination_principal,destination_workload,destination_canonical_service,destination_canonical_revision,destination_cluster"} 7` + "\n",
			"# TYPE istio_tcp_sent_bytes_total counter\n" +
				`istio_tcp_sent_bytes_total{reporter="source",source_version="unknown",destination_workload_namespace="unknown",destination_service="db.example.com",destination_service_name="db.example.com",destination_service_namespace="unknown",request_protocol="tcp",response_flags="-",connection_security_policy="unknown",source_app="unknown",zone="a,\"b\""} 7` + "\n",
		},
		"a line that is not whole": {
			"# TYPE envoy_istio_requests_total counter\nenvoy_istio_requests_total{reporter=\"so\n",
			"# TYPE istio_requests_total counter\nenvoy_istio_requests_total{reporter=\"so\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := merger(t, tc.envoy)
			m.Own = own
			w := httptest.NewRecorder()
			m.ServeEnvoy(w, httptest.NewRequest(http.MethodGet, "/stats/prometheus/envoy", http.NoBody))
			if diff := cmp.Diff(tc.want, w.Body.String()); diff != "" {
				t.Error(diff)
			}
			if _, body := scrapeWith(t, m, "*/*"); body != ownText+tc.want {
				t.Errorf("merged metrics: %s", body)
			}
		})
	}
}

// FuzzTags: the converter takes any line, and writes whole lines.
func FuzzTags(f *testing.F) {
	f.Add(toReviews + `,cluster="outbound|80||a.b.svc.c",set_a="\\"`)
	f.Add(`a="`)
	f.Add(`a="\`)
	f.Fuzz(func(t *testing.T, tags string) {
		if strings.ContainsAny(tags, "\r\n") {
			t.Skip()
		}
		m := merger(t, "# TYPE envoy_istio_requests_total counter\nenvoy_istio_requests_total{"+tags+"} 1\n")
		w := httptest.NewRecorder()
		m.ServeEnvoy(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		if n := strings.Count(w.Body.String(), "\n"); n != 2 {
			t.Errorf("%d lines: %q", n, w.Body)
		}
	})
}
