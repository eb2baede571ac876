package replicas

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
)

const (
	// tokenAccount is whose token is made, tokenAudience whom it is for.
	tokenAccount  = "default"
	tokenAudience = "istio-ca"
	// tokenSeconds is how long it counts.
	tokenSeconds = int64(3600)
)

// rootsConfigMap is where control planes tell the roots of the mesh, rootsKey under
// which key.
const (
	rootsConfigMap = "istio-ca-root-cert"
	rootsKey       = "root-cert.pem"
)

// MeshRoots are the roots, PEM, that the control planes of a namespace tell
// workloads to check them with.
func MeshRoots(ctx context.Context, access *rest.Config, namespace string) ([]byte, error) {
	api, err := newAPI(access)
	if err != nil {
		return nil, err
	}
	defer api.close()
	found, err := api.ConfigMaps(namespace).Get(ctx, rootsConfigMap)
	if err != nil {
		return nil, fmt.Errorf("roots of the mesh: %w", err)
	}
	if found.Data[rootsKey] == "" {
		return nil, fmt.Errorf("roots of the mesh: ConfigMap %s/%s has no %s", namespace, rootsConfigMap, rootsKey)
	}
	return []byte(found.Data[rootsKey]), nil
}

// Mint makes a token with which the control planes of the namespace let status
// pages be read.
func Mint(ctx context.Context, access *rest.Config, namespace string) (string, error) {
	api, err := newAPI(access)
	if err != nil {
		return "", err
	}
	defer api.close()
	seconds := tokenSeconds
	made, err := api.CreateToken(ctx, namespace, tokenAccount, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{tokenAudience}, ExpirationSeconds: &seconds,
	}})
	if err != nil {
		return "", fmt.Errorf("make a token of service account %s/%s (or give one with --token-file): %w", namespace, tokenAccount, err)
	}
	return made.Status.Token, nil
}
