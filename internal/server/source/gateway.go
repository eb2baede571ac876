package source

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var gatewayKind = istioKind(kind{
	group: groupNetworking, name: "Gateway", plural: "gateways", versions: istioVersions,
	support: fields.Partly, meaning: "see [its fields](#gateway)", fields: gatewayFields,
}, func(c *conversion, spec *networkingv1alpha3.Gateway) *fields.Error {
	c.object = &snapshot.Gateway{Meta: c.meta, Kind: snapshot.KindGateway, Spec: spec}
	var sockets *fields.Error
	for i, s := range spec.Servers {
		sockets = sockets.And(c.socketFault(fields.At("servers", i)+".bind", s.GetBind()))
	}
	if fault := fields.AllFaults(checkGateway(spec), sockets); fault != nil {
		return fault
	}
	for i, s := range spec.Servers {
		c.warnUnused(fields.At("spec.servers", i), s)
	}
	return nil
})

func checkGateway(g *networkingv1alpha3.Gateway) *fields.Error {
	selector := fields.LabelsFault("selector", g.Selector)
	if len(g.Servers) == 0 {
		return selector.And(fields.Faultf("servers", "is empty: a gateway needs at least one"))
	}
	return selector.And(fields.Each("servers", g.Servers, checkServer))
}

func checkServer(field string, s *networkingv1alpha3.Server) *fields.Error {
	return fields.AllFaults(serverPortFault(field, s), serverHostsFault(field+".hosts", s), protocolTLSFault(field, s))
}

func serverHostsFault(field string, s *networkingv1alpha3.Server) *fields.Error {
	if len(s.Hosts) == 0 {
		return fields.Faultf(field, "is empty: use \"*\" for every host")
	}
	return fields.EachText(field, s.Hosts, func(field, host string) *fields.Error {
		name := host
		if strings.Contains(host, "/") {
			if fault := fields.ScopedHostFault(field, host, "* ."); fault != nil {
				return fault
			}
			_, name, _ = strings.Cut(host, "/")
		}
		if p, _ := mesh.ParseProtocol(s.GetPort().GetProtocol()); p != mesh.TLS && p != mesh.HTTPS {
			return fields.PatternFault(field, name)
		}
		if fields.HostFault(field, name) != nil && fields.PatternFault(field, name) == nil {
			return fields.Faultf(field, "%q: the wildcard of a server name stands for whole labels", host)
		}
		return fields.HostFault(field, name)
	})
}

// protocolTLSFault checks the TLS settings of a server, which depend on its protocol.
func protocolTLSFault(field string, s *networkingv1alpha3.Server) *fields.Error {
	p, known := mesh.ParseProtocol(s.GetPort().GetProtocol())
	isTLS := p == mesh.TLS || p == mesh.HTTPS
	if !known || !isTLS && (s.Tls == nil || p.IsHTTP() && isRedirectOnly(s.Tls)) {
		return nil // serverPortFault reports a protocol that is not known
	}
	field += ".tls"
	switch {
	case isTLS && s.Tls == nil:
		return fields.Faultf(field, "is missing: protocol %s needs it", s.Port.Protocol)
	case isTLS:
		return serverTLSFault(field, s.Tls)
	}
	return fields.Faultf(field, "does not go with protocol %s: use HTTPS or TLS", s.Port.Protocol)
}

// isRedirectOnly reports whether settings have nothing but httpsRedirect.
func isRedirectOnly(t *networkingv1alpha3.ServerTLSSettings) bool {
	return snapshot.PassesTLS(t) && len(certificatesOf(t)) == 0 && t.CaCertificates == ""
}

func serverPortFault(field string, s *networkingv1alpha3.Server) *fields.Error {
	switch {
	case s.Port == nil:
		return fields.Faultf(field+".port", "is missing")
	case s.Port.Protocol == "":
		return fields.Faultf(field+".port.protocol", "is missing")
	}
	if snapshot.IsUnixSocket(s.Bind) { // socketFault checks the path
		faults := fields.ProtocolFault(field+".port", s.Port.Protocol, mesh.UDP, mesh.HTTPProxy)
		if s.Port.Number != 0 {
			faults = fields.Faultf(field+".port.number", "%d: a Unix socket has no port, use 0", s.Port.Number).And(faults)
		}
		return faults
	}
	return fields.PortFault(field+".port", s.Port.Number, s.Port.Protocol, mesh.UDP, mesh.HTTPProxy).And(fields.BindFault(field+".bind", s.Bind))
}

// certificatesOf returns the names of the fields that name certificates of the server.
func certificatesOf(t *networkingv1alpha3.ServerTLSSettings) []string {
	var out []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"credentialName", t.CredentialName != ""},
		{"credentialNames", len(t.CredentialNames) > 0},
		{"serverCertificate", t.ServerCertificate != "" || t.PrivateKey != ""},
		{"tlsCertificates", len(t.TlsCertificates) > 0},
	} {
		if f.set {
			out = append(out, f.name)
		}
	}
	return out
}

// usedCertificates returns the fields of certificatesOf that count: files beside Secrets do not, as
// with Istio.
func usedCertificates(t *networkingv1alpha3.ServerTLSSettings) []string {
	certificates := certificatesOf(t)
	if namesSecrets(t) {
		certificates = slices.DeleteFunc(certificates, func(name string) bool { return !strings.HasPrefix(name, "credentialName") })
	}
	return certificates
}

// namesSecrets reports whether the certificates of a server are in Secrets.
func namesSecrets(t *networkingv1alpha3.ServerTLSSettings) bool {
	return t.CredentialName != "" || len(t.CredentialNames) > 0
}

// maxServerCertificates is the number of certificates of one server: one for each type of key.
const maxServerCertificates = 2

func serverTLSFault(field string, t *networkingv1alpha3.ServerTLSSettings) *fields.Error {
	if snapshot.PassesTLS(t) {
		return nil
	}
	certificates := usedCertificates(t)
	if t.Mode == networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL {
		if len(certificates) > 0 || t.CaCertificates != "" {
			return fields.Faultf(field+"."+append(certificates, "caCertificates")[0], "does not go with mode ISTIO_MUTUAL, which uses the certificate of the workload")
		}
		return nil
	}
	mutual := t.Mode != networkingv1alpha3.ServerTLSSettings_SIMPLE
	secrets := namesSecrets(t)
	var faults *fields.Error
	switch {
	case len(certificates) == 0:
		faults = fields.Faultf(field, "has no certificate: mode %s needs credentialName, or serverCertificate and privateKey", t.Mode)
	case len(certificates) > 1:
		faults = fields.Faultf(field+"."+certificates[1], "does not go with %s: use one of them", certificates[0])
	case max(len(t.CredentialNames), len(t.TlsCertificates)) > maxServerCertificates:
		faults = fields.Faultf(field+"."+certificates[0], "has more than %d certificates", maxServerCertificates)
	case !secrets && t.ServerCertificate == "" != (t.PrivateKey == ""):
		faults = fields.Faultf(field, "needs both serverCertificate and privateKey")
	case mutual && !secrets && t.CaCertificates == "":
		faults = fields.Faultf(field+".caCertificates", "is missing: mode %s needs it to verify clients", t.Mode)
	}
	if t.CaCrl != "" && (secrets || !mutual) {
		faults = faults.And(fields.Faultf(field+".caCrl", "is for caCertificates: a Secret has its list in the key ca.crl"))
	}
	lowest, highest, which := t.MinProtocolVersion, t.MaxProtocolVersion, "minProtocolVersion"
	if lowest == networkingv1alpha3.ServerTLSSettings_TLS_AUTO {
		lowest, which = networkingv1alpha3.ServerTLSSettings_TLSV1_2, "the default minProtocolVersion"
	}
	if highest != networkingv1alpha3.ServerTLSSettings_TLS_AUTO && lowest > highest {
		faults = faults.And(fields.Faultf(field, "%s %s is above maxProtocolVersion %s: no client could connect", which, lowest, highest))
	}
	if secrets {
		return fields.AllFaults(faults, credentialsFault(field, t), clientHashesFault(field, t))
	}
	return fields.AllFaults(faults, fields.Each(field+".tlsCertificates", t.TlsCertificates, func(field string, c *networkingv1alpha3.ServerTLSSettings_TLSCertificate) *fields.Error {
		if c.ServerCertificate == "" || c.PrivateKey == "" {
			return fields.Faultf(field, "needs both serverCertificate and privateKey")
		}
		return nil
	}), credentialsFault(field, t), clientHashesFault(field, t))
}

// credentialsFault checks the names of Secrets and ConfigMaps.
func credentialsFault(field string, t *networkingv1alpha3.ServerTLSSettings) *fields.Error {
	var faults *fields.Error
	if t.CredentialName != "" && !isCredential(t.CredentialName) {
		faults = faults.And(fields.Faultf(field+".credentialName", "%q is not the name of a Secret", t.CredentialName))
	}
	for i, name := range t.CredentialNames {
		if !isCredential(name) {
			faults = faults.And(fields.Faultf(fields.At(field+".credentialNames", i), "%q is not the name of a Secret", name))
		}
	}
	if name := strings.TrimPrefix(t.CaCertCredentialName, snapshot.ConfigMapPrefix); name != "" && !isCredential(name) {
		faults = faults.And(fields.Faultf(field+".caCertCredentialName", "%q is not the name of a Secret or ConfigMap", t.CaCertCredentialName))
	}
	return faults
}

// isCredential reports whether a text names a Secret: name or namespace/name, maybe with the
// scheme kubernetes://.
func isCredential(text string) bool {
	namespace, name, two := strings.Cut(strings.TrimPrefix(text, "kubernetes://"), "/")
	if !two {
		namespace, name = metav1.NamespaceDefault, namespace
	}
	return mesh.IsDNSLabel(namespace) && mesh.IsDNSName(name)
}

// clientHashesFault checks the hashes of client certificates. Envoy refuses malformed ones.
func clientHashesFault(field string, t *networkingv1alpha3.ServerTLSSettings) *fields.Error {
	var faults *fields.Error
	for i, text := range t.VerifyCertificateSpki {
		if b, err := base64.StdEncoding.DecodeString(text); err != nil || len(b) != sha256.Size {
			faults = faults.And(fields.Faultf(fields.At(field+".verifyCertificateSpki", i), "%q is not a SHA-256 hash in base64", text))
		}
	}
	for i, text := range t.VerifyCertificateHash {
		if b, err := hex.DecodeString(strings.ReplaceAll(text, ":", "")); err != nil || len(b) != sha256.Size {
			faults = faults.And(fields.Faultf(fields.At(field+".verifyCertificateHash", i), "%q is not a SHA-256 hash in hexadecimal", text))
		}
	}
	return faults
}

// warnUnused warns about settings of a server that have no effect with its protocol and mode.
func (c *conversion) warnUnused(field string, s *networkingv1alpha3.Server) {
	t := s.GetTls()
	if t == nil || c.Remote {
		return
	}
	field += ".tls"
	p, _ := mesh.ParseProtocol(s.Port.Protocol)
	if t.HttpsRedirect && !p.IsHTTP() {
		c.warn(fields.WithoutEffect(field+".httpsRedirect", "only servers with protocol HTTP redirect"))
	}
	certificates := certificatesOf(t)
	if snapshot.PassesTLS(t) && len(certificates) > 0 {
		c.warn(fields.WithoutEffect(field+"."+certificates[0], "mode "+t.Mode.String()+" uses no certificate"))
	}
	if used := usedCertificates(t); len(used) > 0 && len(used) < len(certificates) && t.Mode != networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL {
		c.warn(fields.WithoutEffect(field+"."+certificates[len(used)], used[0]+" is used instead"))
	}
	verifies := t.Mode == networkingv1alpha3.ServerTLSSettings_MUTUAL || t.Mode == networkingv1alpha3.ServerTLSSettings_OPTIONAL_MUTUAL
	if !verifies && (len(t.VerifyCertificateSpki) > 0 || len(t.VerifyCertificateHash) > 0) {
		c.warn(fields.WithoutEffect(field, "mode "+t.Mode.String()+" compares no hashes of client certificates"))
	}
	if !verifies && t.Mode != networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL && len(t.SubjectAltNames) > 0 {
		c.warn(fields.WithoutEffect(field+".subjectAltNames", "mode "+t.Mode.String()+" verifies no client"))
	}
	for i, pair := range t.TlsCertificates {
		if pair.GetCaCertificates() != "" {
			c.warn(fields.WithoutEffect(fields.At(field+".tlsCertificates", i)+".caCertificates", commonClientCAs))
		}
	}
	for i, suite := range t.CipherSuites {
		if !mesh.IsCipherSuite(suite) {
			c.warn(fields.WithoutEffect(fields.At(field+".cipherSuites", i), "Envoy has no cipher suite "+suite))
		}
	}
}

// commonClientCAs explains why a certificate of a server has no CA certificates for clients.
const commonClientCAs = "a server has one list of CA certificates for its clients: use caCertificates of tls"

var gatewayFields = []fields.Field{
	{Path: "selector", Support: fields.Works, Meaning: "proxies of type `router` of all namespaces"},
	{Path: "servers", Support: fields.Partly, Meaning: "`port`, `bind`, `hosts`, `tls` and `name`"},
	{Path: "servers.bind", Support: fields.Works, Meaning: "an IP address, or with a directory of YAML a Unix socket below `--socket-dir`"},
	{Path: "servers.port", Support: fields.Partly, Meaning: "`number`, `name` and `protocol`: HTTP, HTTP2, GRPC, GRPC-WEB, HTTPS, TLS, TCP, MONGO, MYSQL, REDIS"},
	{Path: "servers.port.targetPort", Support: fields.NoEffect, Meaning: "the Service of the gateway determines the port of the pod"},
	{Path: "servers.tls", Support: fields.Works, Meaning: "all modes; a setting that the mode does not use is reported"},
	{Path: "servers.defaultEndpoint", Support: fields.NoEffect, Meaning: "VirtualServices route requests and connections"},
}
