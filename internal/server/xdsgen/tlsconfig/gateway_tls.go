package tlsconfig

import (
	"crypto/tls"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// DownstreamTLS returns the TLS of a server that accepts protocols by ALPN.
func DownstreamTLS(t *networkingv1alpha3.ServerTLSSettings, limits TLSLimits, alpn ...string) *tlsv3.DownstreamTlsContext {
	mode := t.GetMode()
	d := &tlsv3.DownstreamTlsContext{RequireClientCertificate: wire.Boolean(
		mode == networkingv1alpha3.ServerTLSSettings_MUTUAL || mode == networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL,
	)}
	if mode == networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL {
		d.CommonTlsContext = commonTLS(limits.Mesh, alpn, ExactSANs(t.GetSubjectAltNames()))
		return d
	}
	d.CommonTlsContext = &tlsv3.CommonTlsContext{AlpnProtocols: alpn, TlsParams: serverTLSParams(t, limits.Others), TlsCertificateSdsSecretConfigs: serverCertificates(t)}
	if mode != networkingv1alpha3.ServerTLSSettings_SIMPLE {
		rules := &tlsv3.CertificateValidationContext{
			MatchSubjectAltNames:  ExactSANs(t.GetSubjectAltNames()), //nolint:staticcheck // see commonTLS
			VerifyCertificateSpki: t.GetVerifyCertificateSpki(),
			VerifyCertificateHash: t.GetVerifyCertificateHash(),
		}
		if t.GetInsecureSkipVerify().GetValue() {
			rules.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
		}
		d.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: rules, ValidationContextSdsSecretConfig: clientRoots(t),
			},
		}
	}
	return d
}

// serverTLSParams returns the versions and cipher suites of a server, which override those
// of the mesh.
func serverTLSParams(t *networkingv1alpha3.ServerTLSSettings, limits snapshot.TLSLimits) *tlsv3.TlsParameters {
	p := TLSParameters(limits, tls.VersionTLS12)
	if v := t.GetMinProtocolVersion(); v != networkingv1alpha3.ServerTLSSettings_TLS_AUTO {
		p.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TlsProtocol(v) // the numbers are the same
	}
	if v := t.GetMaxProtocolVersion(); v != networkingv1alpha3.ServerTLSSettings_TLS_AUTO {
		p.TlsMaximumProtocolVersion = tlsv3.TlsParameters_TlsProtocol(v)
	}
	var suites []string
	for _, suite := range t.GetCipherSuites() {
		if mesh.IsCipherSuite(suite) && !slices.Contains(suites, suite) {
			suites = append(suites, suite)
		}
	}
	if len(suites) > 0 {
		p.CipherSuites = suites
	}
	return p
}

// serverCertificates returns the references to the certificates of a server: Secrets, or
// files that the agent serves.
func serverCertificates(t *networkingv1alpha3.ServerTLSSettings) []*tlsv3.SdsSecretConfig {
	names := t.GetCredentialNames()
	if t.GetCredentialName() != "" {
		names = []string{t.GetCredentialName()}
	}
	var out []*tlsv3.SdsSecretConfig
	for _, name := range names {
		out = append(out, NamedSecret(SDSName(name)))
	}
	if len(out) > 0 {
		return out
	}
	files := t.GetTlsCertificates()
	if len(files) == 0 {
		files = []*networkingv1alpha3.ServerTLSSettings_TLSCertificate{{ServerCertificate: t.GetServerCertificate(), PrivateKey: t.GetPrivateKey()}}
	}
	for _, f := range files {
		out = append(out, AgentSecret(mesh.SecretFileCertificate+f.GetServerCertificate()+"~"+f.GetPrivateKey()))
	}
	return out
}

// clientRoots returns the reference to the CA certificates with which a server verifies its
// clients.
func clientRoots(t *networkingv1alpha3.ServerTLSSettings) *tlsv3.SdsSecretConfig {
	name := t.GetCaCertCredentialName()
	switch {
	case name != "":
	case t.GetCredentialName() != "":
		name = t.GetCredentialName()
	case len(t.GetCredentialNames()) > 0:
		name = t.GetCredentialNames()[0]
	default:
		return FileRoots(t.GetCaCertificates(), t.GetCaCrl())
	}
	if name = SDSName(name); !strings.HasPrefix(name, units.ConfigMapPrefix) && !strings.HasSuffix(name, units.CASuffix) {
		name += units.CASuffix
	}
	return NamedSecret(name)
}

// secretSource bounds the time that listeners and clusters wait for a secret. Without the secret
// they start, and only the connections that need it fail until it arrives. It must not be changed.
var secretSource = wire.EncodedOnce(&corev3.ConfigSource{
	ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	InitialFetchTimeout:   durationpb.New(5 * time.Second),
	ResourceApiVersion:    corev3.ApiVersion_V3,
})
