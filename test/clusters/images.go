package clusters

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// sandboxImage has the container that holds the network of a pod.
const sandboxImage = "localhost/app:v1"

// image has one static program, with further names in /bin.
type image struct {
	name, program string
	names         []string
	entrypoint    []string
	env           []string
}

// images returns the images of the clusters. Two of them stand for the images of
// examples/two-clusters, as tests have no registry.
func images(app, grpc, coredns string) []image {
	const hello = "docker.io/istio/examples-helloworld-"
	return []image{
		{name: sandboxImage, program: app, entrypoint: []string{"/app"}},
		{name: "localhost/coredns:v1", program: coredns, entrypoint: []string{"/coredns"}},
		{name: "localhost/grpc:v1", program: grpc, names: []string{"grpc-server", "grpc-call", "sleep"}, entrypoint: []string{"/bin/grpc-server"}},
		{name: hello + "v1:1.0", program: app, names: []string{"helloworld"}, entrypoint: []string{"/bin/helloworld"}, env: []string{"SERVICE_VERSION=v1"}},
		{name: hello + "v2:1.0", program: app, names: []string{"helloworld"}, entrypoint: []string{"/bin/helloworld"}, env: []string{"SERVICE_VERSION=v2"}},
		{name: "docker.io/curlimages/curl:8.16.0", program: app, names: []string{"curl", "load", "sleep"}, entrypoint: []string{"/bin/curl"}},
	}
}

// makeImages writes the archives of the images to a directory and returns their paths.
func makeImages(dir, bin string) ([]string, error) {
	app, grpc := filepath.Join(dir, "app"), filepath.Join(dir, "grpcapp")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir,
		"github.com/meshctl/meshctl/test/clusters/app", "github.com/meshctl/meshctl/test/clusters/grpcapp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the applications of the pods: %w\n%s", err, out)
	}
	var paths []string
	for i, image := range images(app, grpc, filepath.Join(bin, "coredns")) {
		path := filepath.Join(dir, fmt.Sprintf("image%d.tar", i))
		if err := image.write(path); err != nil {
			return nil, fmt.Errorf("image %s: %w", image.name, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// write writes the image in the form of docker save.
func (i *image) write(path string) error {
	content, err := os.ReadFile(i.program)
	if err != nil {
		return err
	}
	file := "/" + filepath.Base(i.program)
	headers := []*tar.Header{{Name: file[1:], Size: int64(len(content)), Mode: 0o755}}
	for _, name := range i.names {
		headers = append(headers, &tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: file})
	}
	layer, err := tarOf(headers, content)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": i.entrypoint, "Env": append(i.env, "PATH=/bin")},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{i.name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	archive, err := tarOf([]*tar.Header{
		{Name: "config.json", Size: int64(len(config)), Mode: 0o644},
		{Name: "layer.tar", Size: int64(len(layer)), Mode: 0o644},
		{Name: "manifest.json", Size: int64(len(manifest)), Mode: 0o644},
	}, config, layer, manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o600)
}

// tarOf returns an archive of the files. Those that have contents come first.
func tarOf(headers []*tar.Header, contents ...[]byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if i < len(contents) {
			if _, err := w.Write(contents[i]); err != nil {
				return nil, err
			}
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
