package mesh

import "time"

// Caller is the authenticated client of a connection. It holds no unproven claims.
type Caller struct {
	Identity Identity
	// Cluster is the cluster of the token's issuer or of the certificate. It is empty
	// if the credential proves no cluster.
	Cluster ClusterID
}

// ClientCertificate describes the certificate with which a caller authenticated.
// Fingerprints are in the form of certs.Fingerprint.
type ClientCertificate struct {
	Serial string    `json:"serial"` // in hexadecimal
	From   time.Time `json:"from"`
	Until  time.Time `json:"until"`
	Issuer string    `json:"issuer"` // fingerprint of the CA that signed it
	// Roots holds the fingerprints of the trusted roots to which the certificate
	// chained, sorted. A cross-signed CA leads to several.
	Roots []string `json:"roots"`
}
