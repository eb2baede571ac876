package analyze

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// certificateNames finds the hosts of a server for which no certificate of the server is, in one of the places
// of the gateway's workloads.
func (m *checker) certificateNames(gw *snapshot.Gateway, field string, s *snapshot.GatewayServer, proxies []*snapshot.Pod) {
	t := s.GetTls()
	if t == nil || snapshot.PassesTLS(t) {
		return
	}
	credentials, field := t.GetCredentialNames(), field+".tls.credentialNames[0]"
	if name := t.GetCredentialName(); name != "" {
		credentials, field = []string{name}, strings.TrimSuffix(field, "s[0]")
	}
	for _, l := range locationsOf(gw, proxies) {
		var names []string
		var first snapshot.Key
		known := len(credentials) > 0
		for _, credential := range credentials {
			k := l.keyIn(credential)
			if first.Name == "" {
				first = k
			}
			secret, read := m.secretOf(k.Cluster, k.Namespace, k.Name)
			if !read || secret == nil || secret.Pair == nil {
				known = false
				break
			}
			of := namesOfCertificate(secret.Pair.Chain)
			known = known && len(of) > 0
			names = append(names, of...)
		}
		if !known {
			continue
		}
		var refused []string
		for _, host := range s.Hosts {
			if _, after, two := strings.Cut(host, "/"); two {
				host = after
			}
			if !slices.ContainsFunc(names, func(name string) bool { return isFor(name, strings.ToLower(host)) }) {
				refused = append(refused, host)
			}
		}
		if len(refused) == 0 {
			continue
		}
		fix := ""
		if t.GetMode() == networkingv1alpha3.ServerTLSSettings_SIMPLE {
			fix = m.replaceSecret(first, false)
		}
		m.findFix(codes.CertificateForOtherHost, gw, fix, field, "the certificate in Secret %s/%s of cluster %s is for %s: clients that verify it refuse connections to %s",
			first.Namespace, first.Name, first.Cluster, listed(names), listed(refused))
	}
}

// namesOfCertificate returns the DNS names of the first certificate in PEM, in lower case. Without such
// names, this is its common name, if that is one.
func namesOfCertificate(chain []byte) []string {
	block, _ := pem.Decode(chain)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	names := cert.DNSNames
	if common := cert.Subject.CommonName; len(names)+len(cert.URIs)+len(cert.IPAddresses) == 0 && strings.Contains(common, ".") && mesh.IsDNSName(strings.ToLower(common)) {
		names = []string{common}
	}
	var out []string
	for _, name := range names {
		out = append(out, strings.ToLower(name))
	}
	return out
}

// isFor reports whether a name of a certificate is for a host, or for some host of a wildcard. The asterisk
// of a certificate stands for one label.
func isFor(name, host string) bool {
	if strings.HasPrefix(host, "*") {
		return snapshot.HostsOverlap(host, name)
	}
	if suffix, wild := strings.CutPrefix(name, "*."); wild {
		_, parent, _ := strings.Cut(host, ".")
		return parent == suffix
	}
	return name == host
}
