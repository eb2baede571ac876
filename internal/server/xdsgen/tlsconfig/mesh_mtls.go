// Package tlsconfig generates the TLS settings of listeners, and mutual TLS of the mesh.
package tlsconfig

import (
	"cmp"
	"crypto/tls"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// TLSSocket is the name of TLS transport sockets. gRPC accepts no other name.
const TLSSocket = "envoy.transport_sockets.tls"

// Istio's ALPN protocols. With them a client announces mTLS of the mesh and the protocol
// inside.
var (
	AlpnAll      = []string{"istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"}
	AlpnMTLSHTTP = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	AlpnMTLSTCP  = []string{"istio-peer-exchange", "istio"}
	AlpnPlain    = []string{"http/1.1", "h2c"}
	alpnPlain10  = []string{"http/1.0", "http/1.1", "h2c"}
)

// PlainALPN returns the protocols of HTTP in plaintext that a listener with the settings accepts.
func PlainALPN(s telemetry.Settings) []string {
	if s.AcceptsHTTP10 {
		return alpnPlain10
	}
	return AlpnPlain
}

// TLSParameters returns the parameters of TLS with these limits. The oldest version is
// oldest unless the limits set another one.
func TLSParameters(l snapshot.TLSLimits, oldest uint16) *tlsv3.TlsParameters {
	p := &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3}
	if cmp.Or(l.MinVersion, oldest) == tls.VersionTLS12 {
		p.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_2
		p.CipherSuites = namesIn(l.Ciphers)
	}
	p.EcdhCurves = namesIn(l.Curves)
	return p
}

// namesIn splits a field of TLSLimits.
func namesIn(joined string) []string {
	if joined == "" {
		return nil
	}
	return strings.Split(joined, ":")
}

// MeshUpstreamTLS returns the transport socket for mTLS to a service. The server's
// certificate must chain to the mesh's roots and have one of the accounts as identity.
// If there are no accounts, any identity is accepted.
func MeshUpstreamTLS(g *wire.Generator, limits snapshot.TLSLimits, accounts []string, sni string, http2 bool) *corev3.TransportSocket {
	alpn := []string{"istio"}
	if http2 {
		alpn = append(alpn, "h2")
	}
	common := commonTLS(limits, alpn, ExactSANs(accounts))
	return g.TransportSocket(TLSSocket, &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: sni})
}

// MeshDownstreamTLS returns the transport socket that terminates mTLS. It requires a client
// certificate of one of the trust domains.
func MeshDownstreamTLS(g *wire.Generator, limits snapshot.TLSLimits, trustDomains []string) *corev3.TransportSocket {
	var sans []*matcherv3.StringMatcher
	for _, td := range trustDomains {
		sans = append(sans, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + td + "/"},
		})
	}
	return g.TransportSocket(TLSSocket, &tlsv3.DownstreamTlsContext{
		CommonTlsContext:         commonTLS(limits, []string{"h2", "http/1.1"}, sans),
		RequireClientCertificate: wire.Yes,
	})
}

// commonTLS returns the common part of both ends. Both are proxies of the mesh, which
// support TLS 1.3.
func commonTLS(limits snapshot.TLSLimits, alpn []string, sans []*matcherv3.StringMatcher) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams:                      TLSParameters(limits, tls.VersionTLS13),
		AlpnProtocols:                  alpn,
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{workloadCertificate()},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					// All supported versions of Envoy and Istio's tools read this
					// field, which leaves the type of the SAN open.
					MatchSubjectAltNames: sans, //nolint:staticcheck // see above
				},
				ValidationContextSdsSecretConfig: meshRoots(),
			},
		},
	}
}

// References to the certificate of the workload and the roots of the mesh. They must not be
// changed.
var (
	workloadCertificate = wire.EncodedOnce(AgentSecret("default"))
	meshRoots           = wire.EncodedOnce(AgentSecret("ROOTCA"))
)

// AgentSecret returns the reference to a secret that the agent serves through the
// bootstrap's cluster sds-grpc.
func AgentSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			SetNodeOnFirstMessageOnly: true,
			TransportApiVersion:       corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: mesh.SDSCluster},
			}}},
		}},
		InitialFetchTimeout: wire.NoTime,
		ResourceApiVersion:  corev3.ApiVersion_V3,
	}}
}

// ExactSANs returns matchers for these identities.
func ExactSANs(accounts []string) []*matcherv3.StringMatcher {
	out := make([]*matcherv3.StringMatcher, len(accounts))
	for i, a := range accounts {
		out[i] = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: a}}
	}
	return out
}

// RawBuffer is the transport socket without encryption. It must not be changed.
var RawBuffer = sync.OnceValue(func() *corev3.TransportSocket {
	return wire.PreEncoded(&corev3.TransportSocket{
		Name:       "envoy.transport_sockets.raw_buffer",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: wire.MustAny(&rawbufferv3.RawBuffer{})},
	})
})
