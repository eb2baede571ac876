package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
)

// Limits of an image besides its bytes.
const (
	maxManifest    = 4 << 20
	maxLayers      = 127
	maxCredentials = 1 << 20 // bytes of a file
)

// Media types of layers that are a module.
const (
	moduleLayer   types.MediaType = "application/vnd.module.wasm.content.layer.v1+wasm"
	artifactLayer types.MediaType = "application/wasm"
)

// fetch writes a module to w. It returns the SHA-256 sum of what the server has: of the file, or
// the digest of the image.
func (s *Store) fetch(ctx context.Context, m Module, w io.Writer) (sum string, err error) {
	switch scheme, rest, found := strings.Cut(m.URL, "://"); {
	case !found:
		return s.fetchImage(ctx, m, scheme, w)
	case scheme == "oci":
		return s.fetchImage(ctx, m, rest, w)
	case scheme == "http" || scheme == "https":
		return s.fetchFile(ctx, m.URL, w)
	default:
		return "", fmt.Errorf("the URL of the module has the scheme %q: want oci, http or https", scheme)
	}
}

func (s *Store) fetchFile(ctx context.Context, at string, w io.Writer) (sum string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return "", errors.New("the URL of the module is not valid")
	}
	client := dial.DownloadClient(s.Timeout, &transport{Store: s, plain: req.URL.Scheme == "http"})
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("%s: %w", req.URL.Host, withoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", req.URL.Host, resp.Status)
	}
	hash := sha256.New()
	body := io.TeeReader(resp.Body, hash)
	if err := unpack(w, body, hasModuleName); err != nil {
		return "", fmt.Errorf("what %s answers: %w", req.URL.Host, err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil { // the sum is the one of the whole file
		return "", fmt.Errorf("%s: %w", req.URL.Host, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func (s *Store) fetchImage(ctx context.Context, m Module, text string, w io.Writer) (digest string, err error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return "", fmt.Errorf("the name of the image is not valid: %w", err)
	}
	if registry := ref.Context().RegistryStr(); s.isInsecure(registry) {
		if ref, err = name.ParseReference(text, name.Insecure); err != nil {
			return "", err
		}
	}
	auth, err := s.authenticator(ref, m.Credentials)
	if err != nil {
		return "", err
	}
	found, err := remote.Get(ref, remote.WithContext(ctx), remote.WithAuth(auth), remote.WithTransport(&transport{Store: s}))
	if err != nil {
		return "", &manifestError{withoutURL(err)}
	}
	image, err := found.Image()
	if err != nil {
		return "", &manifestError{err}
	}
	manifest, err := image.Manifest()
	if err != nil {
		return "", &manifestError{err}
	}
	if len(manifest.Layers) > maxLayers {
		return "", &manifestError{fmt.Errorf("the image has more than %d layers", maxLayers)}
	}
	for _, layer := range slices.Backward(manifest.Layers) {
		err := copyLayer(image, layer, w)
		if err == nil {
			return found.Digest.Hex, nil
		}
		if !errors.Is(err, errNoModule) {
			return "", fmt.Errorf("layer %s of the image: %w", layer.Digest, withoutURL(err))
		}
	}
	return "", contentError("the image has neither a layer with a module nor a file plugin.wasm")
}

// copyLayer writes the module of a layer to w. It writes nothing if the layer has none.
func copyLayer(image v1.Image, layer v1.Descriptor, w io.Writer) error {
	isModule := layer.MediaType == moduleLayer || layer.MediaType == artifactLayer
	if !isModule && !layer.MediaType.IsLayer() {
		return errNoModule
	}
	if layer.Size > maxDownload {
		return fmt.Errorf("it has %d bytes, more than %d", layer.Size, maxDownload)
	}
	blob, err := image.LayerByDigest(layer.Digest)
	if err != nil {
		return err
	}
	in, err := blob.Compressed() // it fails at its end if the digest is another
	if err != nil {
		return err
	}
	defer in.Close()
	if isModule {
		err = copyModule(w, in)
	} else {
		err = unpack(w, in, isPlugin)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// authenticator returns the credentials of a registry, from the plugin or else from the agent's
// file.
func (s *Store) authenticator(ref name.Reference, given []byte) (authn.Authenticator, error) {
	if len(given) == 0 && s.CredentialsFile != "" {
		var err error
		if given, err = files.Read(s.CredentialsFile, maxCredentials); err != nil {
			return nil, fmt.Errorf("credentials of registries: %w", err)
		}
	}
	if len(given) == 0 {
		return authn.Anonymous, nil
	}
	var config struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if json.Unmarshal(given, &config) != nil { // whose error may show a part of the secret
		return nil, errors.New("the credentials of registries are not in the format of Docker's config.json")
	}
	var best string
	out := authn.Anonymous
	for at, credentials := range config.Auths {
		if place := registryOf(at); isWithin(ref, place) && len(place) >= len(best) {
			best, out = place, authn.FromConfig(credentials)
		}
	}
	return out, nil
}

// registryOf returns the registry, and possibly the start of the repository, that a key of
// Docker's configuration names.
func registryOf(key string) string {
	if _, rest, found := strings.Cut(key, "://"); found {
		key = rest
	}
	key = strings.TrimSuffix(key, "/")
	key = strings.TrimSuffix(strings.TrimSuffix(key, "/v1"), "/v2")
	if key == "docker.io" {
		return name.DefaultRegistry
	}
	return key
}

func isWithin(ref name.Reference, place string) bool {
	return place != "" && strings.HasPrefix(ref.Context().Name()+"/", place+"/")
}

// isInsecure reports whether the user permits to connect to a registry without TLS.
func (s *Store) isInsecure(registry string) bool {
	return slices.Contains(s.Insecure, registry) || slices.Contains(s.Insecure, "*")
}

// IsLatest reports whether a URL names the newest image of a repository.
func IsLatest(at string) bool {
	scheme, rest, found := strings.Cut(at, "://")
	if !found {
		rest = scheme
	} else if scheme != "oci" {
		return false
	}
	ref, err := name.ParseReference(rest)
	return err == nil && ref.Identifier() == name.DefaultTag
}

// transport makes the requests of one module.
type transport struct {
	*Store
	plain bool // the URL of the module has no TLS
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !t.plain && !t.isInsecure(req.URL.Host) {
		return nil, fmt.Errorf("%s would be asked without TLS: name it in WASM_INSECURE_REGISTRIES if it has none", req.URL.Host)
	}
	through := t.strict
	if slices.Contains(t.Insecure, req.URL.Host) {
		through = t.local
	}
	resp, err := through.RoundTrip(req)
	if err == nil && strings.Contains(req.URL.Path, "/manifests/") {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{&limited{resp.Body, maxManifest, "the manifest of the image"}, resp.Body}
	}
	return resp, err
}

// withoutURL returns the cause of a failed request, without its URL, which may hold a secret.
func withoutURL(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		return inner.Err
	}
	return err
}
