package mesh

// Caller is who is at the other end of a connection, as authentication proved
// it. Nothing in it comes from what the caller says of itself.
type Caller struct {
	Identity Identity
	// Cluster is the cluster that the caller was proved to run in: that of
	// the token's issuer, or of the certificate. Empty when nothing proves it.
	Cluster ClusterID
}
