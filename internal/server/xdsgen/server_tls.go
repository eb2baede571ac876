package xdsgen

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// tlsLimits limits the TLS of servers: with the mesh's certificates, and with others.
type tlsLimits struct{ mesh, others snapshot.TLSLimits }

// serverTLS returns the transport socket of a server that terminates TLS.
func (g *generator) serverTLS(t *networkingv1alpha3.ServerTLSSettings, limits tlsLimits) *corev3.TransportSocket {
	return g.transportSocket(tlsSocket, downstreamTLS(t, limits, "h2", "http/1.1"))
}

// sdsName returns the name of a credential with its scheme.
func sdsName(credential string) string {
	if strings.Contains(credential, "://") {
		return credential
	}
	return secretPrefix + credential
}

// namedSecret returns the reference to a secret that the control plane serves.
func namedSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: secretSource()}
}

// fileRoots returns the reference to the CA certificates in a file, with the revocation
// list in another one, if any.
func fileRoots(certificates, crl string) *tlsv3.SdsSecretConfig {
	name := mesh.SecretFileRoots + certificates
	if crl != "" {
		name += "~" + crl
	}
	return agentSecret(name)
}
