// Command image builds the container image of meshctl: an OCI archive with the static
// binary, an Envoy with the libraries that it needs, an SBOM and licences. It has no
// shell. The same inputs give the same bytes.
//
//	go -C tools/image run . -root ../.. -out bin/image.tar -name localhost/meshctl:v1
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the user and the group of the image's processes.
const user = 1337

// options are the flags of the command.
type options struct {
	root, meshctl, out, name string
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", "../..", "`folder` of the clone, with .cache/envoy/envoy")
	flag.StringVar(&o.meshctl, "meshctl", "bin/meshctl", "`program` to put into the image, relative to -root")
	flag.StringVar(&o.out, "out", "bin/image.tar", "`file` to write, relative to -root")
	flag.StringVar(&o.name, "name", "localhost/meshctl:latest", "`name` of the image")
	flag.Parse()
	digest, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// run writes the archive and returns the digest of the image.
func run(o options) (string, error) {
	ref, err := name.NewTag(o.name)
	if err != nil {
		return "", fmt.Errorf("-name: %w", err)
	}
	img, err := build(o.root, o.below(o.meshctl))
	if err != nil {
		return "", err
	}
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	return o.name + "@" + digest.String(), writeArchive(o.below(o.out), o.name, ref.TagStr(), img)
}

// below returns a path, which is relative to -root if it is not absolute.
func (o *options) below(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(o.root, path)
}

// build returns the image. Its layers are ordered from the part that changes least.
func build(root, meshctl string) (v1.Image, error) {
	envoy := filepath.Join(root, ".cache/envoy/envoy")
	libraries, err := librariesOf(envoy)
	if err != nil {
		return nil, err
	}
	parts, err := partsOf(root, meshctl, envoy, libraries)
	if err != nil {
		return nil, err
	}
	base := []entry{
		{path: "etc/passwd", text: fmt.Appendf(nil, "root:x:0:0:root:/:/nologin\nmeshctl:x:%[1]d:%[1]d:meshctl:/:/nologin\n", user)},
		{path: "etc/group", text: fmt.Appendf(nil, "root:x:0:\nmeshctl:x:%d:\n", user)},
		{path: "etc/nsswitch.conf", text: []byte("hosts: files dns\n")},
		{path: "etc/ssl/certs/ca-certificates.crt", file: "/etc/ssl/certs/ca-certificates.crt"},
		{path: "tmp/", mode: 0o1777},
		{path: "etc/istio/proxy/", mode: 0o755, owned: true},
		{path: "var/lib/istio/data/", mode: 0o755, owned: true},
		{path: "var/run/secrets/", mode: 0o755},
	}
	for _, l := range libraries {
		base = append(base, entry{path: strings.TrimPrefix(l.path, "/"), file: l.path, mode: 0o755})
	}
	documents, err := documentsOf(parts)
	if err != nil {
		return nil, err
	}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, layer := range []struct {
		comment string
		entries []entry
	}{
		{"libraries of Envoy, roots of the web", base},
		{"Envoy", []entry{{path: "usr/local/bin/envoy", file: envoy, mode: 0o755}}},
		{"meshctl", []entry{{path: "usr/local/bin/meshctl", file: meshctl, mode: 0o755}}},
		{"SBOM and licences", documents},
	} {
		l, err := layerOf(layer.entries)
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{CreatedBy: "tools/image", Comment: layer.comment}})
		if err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", runtime.GOARCH, v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/local/bin/meshctl"}, WorkingDir: "/", User: fmt.Sprintf("%d:%d", user, user),
		Env: []string{"PATH=/usr/local/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "meshctl",
			"org.opencontainers.image.version":  parts[0].Version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/meshctl/meshctl",
		},
	}
	return mutate.ConfigFile(img, config)
}

// writeArchive writes an OCI archive that containerd, podman and skopeo import under the
// name.
func writeArchive(path, image, tag string, img v1.Image) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	folder, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := folder.AppendImage(img, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          image,
	})); err != nil {
		return err
	}
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	err = errors.Join(archive(f, dir), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

// archive writes the files of an OCI layout as a tar.
func archive(w io.Writer, dir string) error {
	var entries []entry
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		entries = append(entries, entry{path: filepath.ToSlash(rel), file: path})
		return err
	})
	if err != nil {
		return err
	}
	return writeTar(w, entries)
}
