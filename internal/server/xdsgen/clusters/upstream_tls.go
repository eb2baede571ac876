package clusters

import (
	"cmp"
	"crypto/tls"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// certificateNames returns the names of which the certificate of a server outside the mesh must
// contain one. If there are none, autoSNI makes proxies verify the host of each HTTP request.
func certificateNames(t *networkingv1alpha3.ClientTLSSettings, ofService []string) []string {
	switch {
	case t.GetInsecureSkipVerify().GetValue():
		return nil
	case len(t.GetSubjectAltNames()) > 0:
		return t.GetSubjectAltNames()
	case len(ofService) > 0:
		return ofService
	case t.GetSni() != "":
		return []string{t.GetSni()}
	}
	return nil
}

// policyTLS returns the transport socket for TLS by a policy, with certificates that are
// not the mesh's own. The server's certificate must contain one of sans, if there are any.
// credentials reports whether the proxy may use credentialName.
func policyTLS(g *wire.Generator, t *networkingv1alpha3.ClientTLSSettings, sans []string, limits snapshot.TLSLimits, credentials, http2 bool) *corev3.TransportSocket {
	common := &tlsv3.CommonTlsContext{TlsParams: tlsconfig.TLSParameters(limits, tls.VersionTLS12)}
	if http2 {
		common.AlpnProtocols = []string{"h2"}
	}
	name := ""
	if credentials && t.GetCredentialName() != "" {
		name = tlsconfig.SDSName(t.GetCredentialName())
	}
	mutual := t.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL
	switch {
	case mutual && name != "":
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{tlsconfig.NamedSecret(name)}
	case mutual && t.GetClientCertificate() != "":
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{
			tlsconfig.AgentSecret(mesh.SecretFileCertificate + t.GetClientCertificate() + "~" + t.GetPrivateKey()),
		}
	}
	if !t.GetInsecureSkipVerify().GetValue() {
		rules := &tlsv3.CertificateValidationContext{
			MatchSubjectAltNames: tlsconfig.ExactSANs(sans), //nolint:staticcheck // see commonTLS
		}
		roots := tlsconfig.FileRoots(cmp.Or(t.GetCaCertificates(), "system"), t.GetCaCrl())
		if name != "" {
			roots = tlsconfig.NamedSecret(name + units.CASuffix)
		}
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: rules, ValidationContextSdsSecretConfig: roots,
			},
		}
	}
	return g.TransportSocket(tlsconfig.TLSSocket, &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: t.GetSni()})
}

// autoSNI makes HTTP requests to a server outside the mesh use their host as server name,
// and check the server's certificate for it, unless there are other names.
func autoSNI(o *httpv3.HttpProtocolOptions, t *networkingv1alpha3.ClientTLSSettings, sans []string) *httpv3.HttpProtocolOptions {
	if t.GetSni() != "" {
		return o
	}
	if o == nil {
		o = explicitHTTP1()
	}
	o.UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{
		AutoSni: true, AutoSanValidation: len(sans) == 0 && !t.GetInsecureSkipVerify().GetValue(),
	}
	return o
}

// announceClient wraps the transport sockets of a cluster so that connections start with
// the address of the client in PROXY protocol.
func announceClient(g *wire.Generator, c *clusterv3.Cluster, p *networkingv1alpha3.TrafficPolicy_ProxyProtocol) {
	if p == nil {
		return
	}
	wrap := func(inner *corev3.TransportSocket) *corev3.TransportSocket {
		if inner == nil {
			inner = tlsconfig.RawBuffer()
		}
		return g.TransportSocket("envoy.transport_sockets.upstream_proxy_protocol", &proxyprotocolv3.ProxyProtocolUpstreamTransport{
			Config:          &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_Version(p.GetVersion())},
			TransportSocket: inner,
		})
	}
	for _, m := range c.GetTransportSocketMatches() {
		m.TransportSocket = wrap(m.TransportSocket)
	}
	if len(c.GetTransportSocketMatches()) == 0 {
		c.TransportSocket = wrap(c.GetTransportSocket())
	}
}
