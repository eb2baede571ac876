package verify

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
)

// ClusterCA is the CA of a cluster of a mesh.
type ClusterCA struct {
	Place string
	// Signer signs for the cluster, Chain leads from it to a root, and the cluster's
	// proxies trust Roots.
	Signer       *x509.Certificate
	Chain, Roots []*x509.Certificate
}

// Mesh finds clusters whose proxies refuse the proxies of another cluster because its
// signer leads to none of their roots. It ignores expired signers, which Check
// reports.
func Mesh(clusters []ClusterCA, now time.Time) []Finding {
	var out []Finding
	for _, here := range clusters {
		for _, there := range clusters {
			if here.Place == there.Place || now.After(there.Signer.NotAfter) {
				continue
			}
			if _, err := certs.Verify(there.Signer, there.Chain, here.Roots, now); err != nil {
				out = append(out, newFinding(OtherRoot, here.Place, there.Signer,
					fmt.Sprintf("no root that is trusted here is above what signs in %s, so proxies here refuse those there", there.Place)))
			}
		}
	}
	return out
}
