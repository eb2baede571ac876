package meshconfig

import (
	"fmt"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// maxCACertificates bounds caCertificates.
const maxCACertificates = 100

// checkCACertificates checks the additional roots of MeshConfig. Roots for signers of
// Kubernetes are left out with a warning: meshctl does not use such signers.
func (c *Reader) checkCACertificates(m *meshv1alpha1.MeshConfig, doc yamldoc.Value) *fields.Error {
	if n := len(m.CaCertificates); n > maxCACertificates {
		return fields.Faultf("caCertificates", "has %d entries: want at most %d", n, maxCACertificates)
	}
	kept := m.CaCertificates[:0:0]
	for i, cert := range m.CaCertificates {
		field := fmt.Sprintf("caCertificates[%d]", i)
		if fault := checkCACertificate(field, cert); fault != nil {
			return fault
		}
		if len(cert.GetCertSigners()) > 0 {
			c.warn(inText(keyMesh, doc, fields.Faultf(field+".certSigners", "no signer of Kubernetes is used: the entry has no effect")))
			continue
		}
		kept = append(kept, cert)
	}
	m.CaCertificates = kept
	return nil
}

func checkCACertificate(field string, cert *meshv1alpha1.MeshConfig_CertificateData) *fields.Error {
	for i, td := range cert.GetTrustDomains() {
		td = strings.ReplaceAll(td, "@", ".")
		cert.TrustDomains[i] = td
		if !mesh.IsTrustDomain(td) {
			return fields.Faultf(fmt.Sprintf("%s.trustDomains[%d]", field, i), "%q is not a SPIFFE trust domain", td)
		}
	}
	slices.Sort(cert.GetTrustDomains())
	switch pem, endpoint := cert.GetPem(), cert.GetSpiffeBundleUrl(); {
	case pem != "":
		if _, err := certs.ParseCerts([]byte(pem)); err != nil {
			return fields.Faultf(field+".pem", "%v", err)
		}
	case endpoint == "":
		return fields.Faultf(field, "has neither pem nor spiffeBundleUrl")
	default:
		if err := mesh.CheckHTTPS(endpoint); err != nil {
			return fields.Faultf(field+".spiffeBundleUrl", "%v", err)
		}
	}
	return nil
}
