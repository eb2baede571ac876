// Package remotesecret encodes, decodes and checks remote secrets: Kubernetes Secrets
// with a kubeconfig for each of one or more clusters, with which a control plane reads
// the cluster. The commands and the control plane share it. It does no I/O.
//
// A kubeconfig must not give the writer of a Secret access to files or processes of the
// control plane, or to servers that only the control plane reaches. Check refuses such
// kubeconfigs. Unknown fields are ignored.
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

	// AnnotationExpires is the end of the token, RFC 3339. Tokens without an end lack
	// it.
	AnnotationExpires = "meshctl.io/token-expires"
	// AnnotationIssuer is the service account of the token, as namespace/name.
	AnnotationIssuer = "meshctl.io/token-service-account"
	// AnnotationBoundTo is the Secret in the other cluster, namespace/name, that the
	// token is bound to. Deleting the Secret revokes the token.
	AnnotationBoundTo = "meshctl.io/token-bound-to"
	// AnnotationNamespaces lists, with commas, the namespaces with readable services;
	// the default is all. AnnotationCredentialNamespaces lists those with readable
	// Secrets; the default is none.
	AnnotationNamespaces           = "meshctl.io/namespaces"
	AnnotationCredentialNamespaces = "meshctl.io/credential-namespaces"
	// AnnotationCredential is the CredentialHash of the Secret's cluster.
	AnnotationCredential = "meshctl.io/credential-hash"
)

// Names of Istio's contract.
const (
	// ConfigName and ConfigKey are the name and the key of the Secret for the
	// configuration cluster of an external control plane.
	ConfigName = "istio-kubeconfig"
	ConfigKey  = "config"

	namePrefix = "istio-remote-secret-"
)

// Name returns the name of a cluster's remote secret.
func Name(cluster mesh.ClusterID) string { return namePrefix + string(cluster) }

// MaxSize is the size limit of kubeconfigs in bytes.
const MaxSize = 256 << 10

// Cluster is one cluster of a remote secret.
type Cluster struct {
	ID mesh.ClusterID
	// Place names the Secret and its key, or the file.
	Place string
	// Secret is the Secret as namespace/name, empty for a kubeconfig alone.
	Secret string
	// Hash is the SHA-256 of the kubeconfig and, if limited, of the namespaces, in
	// hex. It shows whether the kubeconfig changed.
	Hash string
	// Err is the reason why the kubeconfig is unreadable. The fields below are then
	// empty. Err contains no part of the credential.
	Err error
	// Server and User are the cluster and the user of the current context.
	Server clientcmdv1.Cluster
	User   clientcmdv1.AuthInfo
	// Namespace is the namespace of the current context.
	Namespace string
	// Renewed is set if the token is bound to its own Secret. The control plane then
	// renews it at two thirds of its life.
	Renewed bool
	// Namespaces have readable services, nil for all namespaces. CredentialNamespaces
	// have Secrets for gateways.
	Namespaces, CredentialNamespaces []string

	doc              yamldoc.Value
	serverAt, userAt string // paths in doc
}

// CredentialHash identifies the credential without revealing it: 16 hex digits of the
// SHA-256 of the token, the certificate and key, and the user and password.
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

// HashToken returns the CredentialHash of a cluster with only this token.
func HashToken(token string) string {
	c := Cluster{User: clientcmdv1.AuthInfo{Token: token}}
	return c.CredentialHash()
}

// BearerToken returns the token of User, or "". It may also be in the auth provider.
func (c *Cluster) BearerToken() string {
	if c.User.Token != "" {
		return c.User.Token
	}
	return c.idToken()
}

// Life returns the beginning and the end of the token or else the client certificate.
// Both are zero if unknown or without an end.
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

// idToken returns the token of the auth provider oidc. Nothing renews it, as the writer
// of the kubeconfig chose the address of the provider.
func (c *Cluster) idToken() string {
	if p := c.User.AuthProvider; p != nil && p.Name == providerOIDC {
		return p.Config["id-token"]
	}
	return ""
}

// String returns the name and the place of the cluster, without the credential.
func (c Cluster) String() string { return fmt.Sprintf("cluster %s (%s)", c.ID, c.Place) }

// GoString is String, for %#v.
func (c Cluster) GoString() string { return c.String() }

// LogValue is String, for logs.
func (c Cluster) LogValue() slog.Value { return slog.StringValue(c.String()) }
