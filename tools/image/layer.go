package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entry is one file or, with a slash at its end, one folder of a tar.
type entry struct {
	path  string
	file  string // with the content; empty for text
	text  []byte
	mode  int64 // default 0644, of folders 0755
	owned bool  // by user
}

// layerOf returns a layer with the entries and the folders above them.
func layerOf(entries []entry) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeTar(w, withFolders(entries))) }()
		return r, nil
	}, tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}

// withFolders adds the folders above the entries, and sorts.
func withFolders(entries []entry) []entry {
	out := slices.Clone(entries)
	have := map[string]bool{}
	for _, e := range entries {
		have[e.path] = true
	}
	for _, e := range entries {
		for dir := path.Dir(strings.TrimSuffix(e.path, "/")); dir != "."; dir = path.Dir(dir) {
			if !have[dir+"/"] {
				have[dir+"/"] = true
				out = append(out, entry{path: dir + "/"})
			}
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return out
}

// writeTar writes the entries with fixed times and owners.
func writeTar(w io.Writer, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		if err := e.write(t); err != nil {
			return err
		}
	}
	return t.Close()
}

func (e *entry) write(t *tar.Writer) error {
	h := &tar.Header{Name: e.path, Mode: cmp.Or(e.mode, 0o644), ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if e.owned {
		h.Uid, h.Gid = user, user
	}
	if strings.HasSuffix(e.path, "/") {
		h.Typeflag, h.Mode = tar.TypeDir, cmp.Or(e.mode, 0o755)
		return t.WriteHeader(h)
	}
	var content io.Reader = bytes.NewReader(e.text)
	h.Size = int64(len(e.text))
	if e.file != "" {
		f, err := os.Open(e.file)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		content, h.Size = f, info.Size()
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(t, content)
	return err
}
