package tlsconfig

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// TLSLimits limits the TLS of servers: with the mesh's certificates, and with others.
type TLSLimits struct{ Mesh, Others snapshot.TLSLimits }

// ServerTLS returns the transport socket of a server that terminates TLS.
func ServerTLS(g *wire.Generator, t *networkingv1alpha3.ServerTLSSettings, limits TLSLimits) *corev3.TransportSocket {
	return g.TransportSocket(TLSSocket, DownstreamTLS(t, limits, "h2", "http/1.1"))
}

// SDSName returns the name of a credential with its scheme.
func SDSName(credential string) string {
	if strings.Contains(credential, "://") {
		return credential
	}
	return units.SecretPrefix + credential
}

// NamedSecret returns the reference to a secret that the control plane serves.
func NamedSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: secretSource()}
}

// FileRoots returns the reference to the CA certificates in a file, with the revocation
// list in another one, if any.
func FileRoots(certificates, crl string) *tlsv3.SdsSecretConfig {
	name := mesh.SecretFileRoots + certificates
	if crl != "" {
		name += "~" + crl
	}
	return AgentSecret(name)
}
