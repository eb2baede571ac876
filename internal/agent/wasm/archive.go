package wasm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Limits of a module and of the archive in which it comes, in bytes and files.
const (
	maxModule   = 64 << 20
	maxDownload = 64 << 20
	maxUnpacked = 256 << 20
	maxFiles    = 10_000
)

// contentError is the error of a file or an image that is no module and contains none.
type contentError string

func (e contentError) Error() string { return string(e) }

// errNoModule reports that an archive has no file that may be the module.
const errNoModule contentError = "the archive has no WebAssembly module"

// Magic is the start of every WebAssembly module.
const Magic = "\x00asm"

// unpack copies a module from in to w. The input is the module or a tar archive, possibly
// compressed with gzip. The first regular file of the archive whose name isModule accepts is the
// module.
func unpack(w io.Writer, in io.Reader, isModule func(name string) bool) error {
	r := bufio.NewReader(in)
	if head, _ := r.Peek(2); string(head) == "\x1f\x8b" {
		z, err := gzip.NewReader(r)
		if err != nil {
			return fmt.Errorf("decompress: %w", err)
		}
		r = bufio.NewReader(&limited{z, maxUnpacked, "the archive"})
	}
	if head, _ := r.Peek(len(Magic)); string(head) == Magic {
		return copyModule(w, r)
	}
	if head, _ := r.Peek(262); len(head) < 262 || !bytes.Equal(head[257:], []byte("ustar")) {
		return contentError("it is neither a WebAssembly module nor a tar archive with one")
	}
	archive := tar.NewReader(r)
	for range maxFiles {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return errNoModule
		case err != nil:
			return fmt.Errorf("read the archive: %w", err)
		case header.Typeflag == tar.TypeReg && isModule(header.Name):
			return copyModule(w, archive)
		}
	}
	return fmt.Errorf("the archive has more than %d files", maxFiles)
}

// copyModule copies a module that is not packed.
func copyModule(w io.Writer, in io.Reader) error {
	head := make([]byte, len(Magic))
	if _, err := io.ReadFull(in, head); err != nil || string(head) != Magic {
		return contentError("it is not a WebAssembly module")
	}
	_, err := io.Copy(w, io.MultiReader(bytes.NewReader(head), &limited{in, maxModule - int64(len(head)), "the module"}))
	return err
}

// hasModuleName accepts the names of modules in archives of web servers.
func hasModuleName(name string) bool { return strings.HasSuffix(name, ".wasm") }

// isPlugin accepts the name of the module in an image.
func isPlugin(name string) bool { return path.Base(name) == "plugin.wasm" }

// limited fails after a number of bytes. An early end could look like the whole.
type limited struct {
	io.Reader
	left int64
	what string
}

func (l *limited) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1] // one more byte shows whether there is an end
	}
	n, err := l.Reader.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("%s is too large", l.what)
	}
	return n, err
}
