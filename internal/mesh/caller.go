package mesh

import "time"

// Caller is who is at the other end of a connection, as authentication proved
// it. Nothing in it comes from what the caller says of itself.
type Caller struct {
	Identity Identity
	// Cluster is the cluster that the caller was proved to run in: that of
	// the token's issuer, or of the certificate. Empty when nothing proves it.
	Cluster ClusterID
}

// ClientCertificate is with which certificate a caller proved itself, and to
// what it led when that was checked. Fingerprints are SHA-256 as
// certs.Fingerprint writes them.
type ClientCertificate struct {
	Serial string    `json:"serial"` // in hexadecimal
	From   time.Time `json:"from"`
	Until  time.Time `json:"until"`
	Issuer string    `json:"issuer"` // fingerprint of the CA that signed it
	// Roots are the fingerprints of the roots that it led to, of those that
	// callers were checked with, sorted. There are several when a CA has
	// certificates of several roots.
	Roots []string `json:"roots"`
}
