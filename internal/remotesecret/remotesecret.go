// Package remotesecret is the format of remote secrets: a Kubernetes Secret
// that holds, for each of one or more clusters, a kubeconfig with which a
// control plane reads that cluster. Encode writes what Decode reads, and Check
// judges what Decode read; the commands and the control plane share all three.
//
// A kubeconfig in a Secret is the word of whoever may write Secrets. It must
// not gain him a file or a process of the reader, or a connection that only
// the reader can make, so Check refuses what would, and only fields that it
// knows are used. The package does no I/O.
package remotesecret

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Labels and annotations of remote secrets. The first two are Istio's.
const (
	Label             = "istio/multiCluster"
	LabelValue        = "true"
	AnnotationCluster = "networking.istio.io/cluster"
	// Selector selects remote secrets by their label.
	Selector = Label + "=" + LabelValue

	// AnnotationExpires is when the token ends, RFC 3339; missing for tokens
	// without an end.
	AnnotationExpires = "meshctl.io/token-expires"
	// AnnotationIssuer is whose token it is, as namespace/service account.
	AnnotationIssuer = "meshctl.io/token-service-account"
	// AnnotationBoundTo is the Secret in the other cluster, namespace/name,
	// whose deletion revokes the token.
	AnnotationBoundTo = "meshctl.io/token-bound-to"
	// AnnotationNamespaces and AnnotationCredentialNamespaces are the namespaces,
	// joined by commas, that the reader may read services, or Secrets, of.
	// Without the first it is all of them, without the second none.
	AnnotationNamespaces           = "meshctl.io/namespaces"
	AnnotationCredentialNamespaces = "meshctl.io/credential-namespaces"
	// AnnotationCredential is the CredentialHash of the Secret's cluster.
	AnnotationCredential = "meshctl.io/credential-hash"
)

// Names of Istio's contract.
const (
	// ConfigName and ConfigKey are those of the Secret with which an external
	// control plane reads its configuration cluster.
	ConfigName = "istio-kubeconfig"
	ConfigKey  = "config"

	namePrefix = "istio-remote-secret-"
)

// Name is the name of the remote secret of a cluster.
func Name(cluster mesh.ClusterID) string { return namePrefix + string(cluster) }

// MaxSize is the longest kubeconfig that is read, in bytes.
const MaxSize = 256 << 10

// Cluster is one cluster of a remote secret.
type Cluster struct {
	ID mesh.ClusterID
	// Place names the Secret and its key, or the file.
	Place string
	// Secret is the Secret as namespace/name, empty for a kubeconfig alone.
	Secret string
	// Hash is the SHA-256 of the kubeconfig's bytes, and of the namespaces if it
	// is for some only, hex: what is equal need not be read again.
	Hash string
	// Err is why the kubeconfig cannot be read; the fields below are then
	// empty. It holds nothing of the credential.
	Err error
	// Server is the API server and User who we are there: the cluster and the
	// user of the current context.
	Server clientcmdv1.Cluster
	User   clientcmdv1.AuthInfo
	// Namespace is that of the context.
	Namespace string
	// Renewed says that the token is bound to an object of its own, so that the
	// control plane renews it at two thirds of its life.
	Renewed bool
	// Namespaces are those whose services can be read, nil for all of them;
	// CredentialNamespaces those whose Secrets are for gateways.
	Namespaces, CredentialNamespaces []string

	doc              yamldoc.Value
	serverAt, userAt string // paths in doc
}

// CredentialHash identifies the credential, without telling it: 16 hex digits
// of the SHA-256 of token, certificate and key, or user and password. Replicas
// and annotations name the credential in use by it.
func (c *Cluster) CredentialHash() string {
	u := &c.User
	h := sha256.New()
	for _, part := range []string{
		u.Token, string(u.ClientCertificateData), string(u.ClientKeyData), u.Username, u.Password, c.idToken(),
	} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// HashToken is the CredentialHash of a cluster with that token alone.
func HashToken(token string) string {
	c := Cluster{User: clientcmdv1.AuthInfo{Token: token}}
	return c.CredentialHash()
}

// BearerToken is the token that User has in one of two places, empty if none.
func (c *Cluster) BearerToken() string {
	if c.User.Token != "" {
		return c.User.Token
	}
	return c.idToken()
}

// Life is from when until when the credential counts: the token, else the client
// certificate. Both are zero when that is not known or when it does not end.
func (c *Cluster) Life() (begins, ends time.Time) {
	if token := c.BearerToken(); token != "" {
		claims, err := ReadToken(token)
		if err != nil || claims.Expiry.IsZero() {
			return time.Time{}, time.Time{}
		}
		return claims.IssuedAt, claims.Expiry
	}
	pair, err := parsePEM(c.User.ClientCertificateData)
	if err != nil || len(pair) == 0 {
		return time.Time{}, time.Time{}
	}
	return pair[0].NotBefore, pair[0].NotAfter
}

// idToken is the token of the auth provider oidc. It is used as it is: nothing
// asks the provider, whose address others chose, for another one.
func (c *Cluster) idToken() string {
	if p := c.User.AuthProvider; p != nil && p.Name == providerOIDC {
		return p.Config["id-token"]
	}
	return ""
}

// String names the cluster and its place, and never the credential.
func (c Cluster) String() string { return fmt.Sprintf("cluster %s (%s)", c.ID, c.Place) }

// GoString is String, for %#v.
func (c Cluster) GoString() string { return c.String() }

// LogValue is String, for logs.
func (c Cluster) LogValue() slog.Value { return slog.StringValue(c.String()) }
