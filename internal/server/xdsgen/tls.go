package xdsgen

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ALPN values of Istio's contract. Clients say with them that mTLS carries
// mesh traffic, and which protocol is inside.
var (
	alpnAll      = []string{"istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"}
	alpnMTLSHTTP = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	alpnMTLSTCP  = []string{"istio-peer-exchange", "istio"}
	alpnPlain    = []string{"http/1.1", "h2c"}
)

// curves are the key exchanges of mesh mTLS, joined so that they can be compared;
// empty leaves them to Envoy.
type curves string

const curveSeparator = ":"

func curvesOf(m *snapshot.Mesh) curves { return curves(strings.Join(m.KeyExchanges, curveSeparator)) }

func (c curves) list() []string {
	if c == "" {
		return nil
	}
	return strings.Split(string(c), curveSeparator)
}

// mutualTLSParams: both ends are ours or Istio's, which speak TLS 1.3.
func mutualTLSParams(exchange curves) *tlsv3.TlsParameters {
	return &tlsv3.TlsParameters{
		EcdhCurves:                exchange.list(),
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}
}

// upstreamTLS is mesh mTLS to a service: our workload certificate, the mesh's
// roots, and the server's identity among the accounts of the service. Without
// known accounts any identity that the roots vouch for is accepted.
func upstreamTLS(exchange curves, accounts []string, sni string, http2 bool) (*corev3.TransportSocket, error) {
	alpn := []string{"istio"}
	if http2 {
		alpn = append(alpn, "h2")
	}
	common := commonTLS(exchange, alpn, exactSANs(accounts))
	return transportSocket("envoy.transport_sockets.tls", &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: sni})
}

// downstreamTLS terminates mesh mTLS: a client certificate of one of the
// trust domains is required.
func downstreamTLS(exchange curves, trustDomains []string) (*corev3.TransportSocket, error) {
	var sans []*matcherv3.StringMatcher
	for _, td := range trustDomains {
		sans = append(sans, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + td + "/"},
		})
	}
	return transportSocket("envoy.transport_sockets.tls", &tlsv3.DownstreamTlsContext{
		CommonTlsContext:         commonTLS(exchange, []string{"h2", "http/1.1"}, sans),
		RequireClientCertificate: wrapperspb.Bool(true),
	})
}

func commonTLS(exchange curves, alpn []string, sans []*matcherv3.StringMatcher) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams:                      mutualTLSParams(exchange),
		AlpnProtocols:                  alpn,
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{agentSecret("default")},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					// The SAN's type is left open on purpose: this field is what
					// every Envoy since 1.36 and Istio's tools read.
					MatchSubjectAltNames: sans, //nolint:staticcheck // see above
				},
				ValidationContextSdsSecretConfig: agentSecret("ROOTCA"),
			},
		},
	}
}

// agentSecret is a secret of the workload, served by its agent over the
// bootstrap's cluster sds-grpc.
func agentSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			SetNodeOnFirstMessageOnly: true,
			TransportApiVersion:       corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "sds-grpc"},
			}}},
		}},
		InitialFetchTimeout: durationpb.New(0),
		ResourceApiVersion:  corev3.ApiVersion_V3,
	}}
}

func exactSANs(accounts []string) []*matcherv3.StringMatcher {
	out := make([]*matcherv3.StringMatcher, len(accounts))
	for i, a := range accounts {
		out[i] = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: a}}
	}
	return out
}

func rawBuffer() (*corev3.TransportSocket, error) {
	return transportSocket("envoy.transport_sockets.raw_buffer", &rawbufferv3.RawBuffer{})
}
