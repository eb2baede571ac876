package replicas

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// The token for status pages.
const (
	// The token is of the service account tokenAccount, for tokenAudience.
	tokenAccount  = "default"
	tokenAudience = "istio-ca"
	// tokenTTL is its lifetime.
	tokenTTL = time.Hour
)

// rootsConfigMap is the ConfigMap in which control planes publish the roots of the
// mesh, rootsKey the key in it.
const (
	rootsConfigMap = "istio-ca-root-cert"
	rootsKey       = "root-cert.pem"
)

// MeshRoots returns the roots, PEM, that workloads of a namespace verify control
// planes by.
func MeshRoots(ctx context.Context, access *rest.Config, namespace string) ([]byte, error) {
	api, err := newAPI(access)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	found, err := api.ConfigMaps(namespace).Get(ctx, rootsConfigMap)
	if err != nil {
		return nil, fmt.Errorf("roots of the mesh: %w", err)
	}
	if found.Data[rootsKey] == "" {
		return nil, fmt.Errorf("roots of the mesh: ConfigMap %s/%s has no %s", namespace, rootsConfigMap, rootsKey)
	}
	return []byte(found.Data[rootsKey]), nil
}

// MeshConfig returns the text of the MeshConfig in the namespace of the control plane, empty if
// there is none.
func MeshConfig(ctx context.Context, access *rest.Config, namespace string) (string, error) {
	api, err := newAPI(access)
	if err != nil {
		return "", err
	}
	defer api.Close()
	found, err := api.ConfigMaps(namespace).Get(ctx, meshConfigMap)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("MeshConfig: %w", err)
	}
	return found.Data["mesh"], nil
}

// meshConfigMap is the name of the ConfigMap with the MeshConfig.
const meshConfigMap = "istio"

// Mint makes a token that the control planes of a namespace accept for status pages.
func Mint(ctx context.Context, access *rest.Config, namespace string) (string, error) {
	return MintFor(ctx, access, namespace, tokenAccount, tokenTTL)
}

// MintFor makes a token of a service account that control planes accept.
func MintFor(ctx context.Context, access *rest.Config, namespace, account string, ttl time.Duration) (string, error) {
	api, err := newAPI(access)
	if err != nil {
		return "", err
	}
	defer api.Close()
	made, err := api.CreateToken(ctx, namespace, account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{tokenAudience}, ExpirationSeconds: new(int64(ttl / time.Second)),
	}})
	if err != nil {
		return "", fmt.Errorf("make a token of service account %s/%s (or give one with --token-file): %w", namespace, account, err)
	}
	return made.Status.Token, nil
}
