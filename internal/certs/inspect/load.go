// Package inspect reads certificates, keys, revocation lists and tokens from
// PEM and DER files, directories, Kubernetes Secrets in YAML, Envoy's config
// dumps, TLS servers and standard input. It lists the contents (List) and when
// it ends (Expiry).
//
// Inputs may be hostile, so every size is bounded. Private keys and tokens are
// reported but never shown or kept.
package inspect

import (
	"bytes"
	"context"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Limits of inputs.
const (
	maxPEM   = 8 << 20   // bytes of one text with PEM
	maxFile  = 64 << 20  // bytes of YAML and dumps
	maxTotal = 256 << 20 // bytes of all inputs together
	maxFiles = 10_000    // files of all directories together
	maxDepth = 10        // levels of directories below an input
	maxCerts = 20_000    // PEM blocks of all inputs together
)

// Stdin is the input that names standard input.
const Stdin = "-"

// Contents holds everything found in the inputs, in their order.
type Contents struct {
	Sets   []verify.Set
	Tokens []Token
	// Empty has a line for each document that holds nothing of interest, if others do.
	Empty []string
}

// Token is a service-account token in a remote secret, a kubeconfig or a Secret.
type Token struct {
	Place string
	// Name is the subject, or the name of the user in the kubeconfig.
	Name    string
	Expires time.Time // zero: never
	// Fault is the reason why the token could not be read, if any.
	Fault string
}

// Document is text from elsewhere than an input, in any format of a file.
type Document struct {
	Place string
	Data  []byte
}

// Loader reads inputs.
type Loader struct {
	Stdin io.Reader
	// ServerName is the SNI sent to TLS servers; empty means their host.
	ServerName string
	// Documents are read before the inputs.
	Documents []Document

	left      int64 // of maxTotal
	filesLeft int
	certsLeft int
	found     Contents
}

// Load reads the documents and the inputs. An unreadable file of a directory is
// part of the result (verify.File.Unreadable). An input that cannot be read or
// holds nothing of interest is an error, as is it if no document holds anything.
func (l *Loader) Load(ctx context.Context, inputs []string) (*Contents, error) {
	l.left, l.filesLeft, l.certsLeft, l.found = maxTotal, maxFiles, maxCerts, Contents{}
	for _, d := range l.Documents {
		err := l.some(d.Place, "Secrets of a CA or of remote clusters", func() error { return l.text(d.Place, "", d.Data) })
		switch none, ok := errors.AsType[*emptyError](err); {
		case ok && len(l.found.Empty) < len(l.Documents)-1:
			l.found.Empty = append(l.found.Empty, none.text)
		case ok:
			return nil, errors.New(strings.Join(append(l.found.Empty, none.text), "; "))
		case err != nil:
			return nil, err
		}
	}
	for _, in := range inputs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.some(Describe(in), "PEM, DER, a Secret in YAML or Envoy's config dump", func() error { return l.load(ctx, in) }); err != nil {
			return nil, err
		}
	}
	return &l.found, nil
}

// some calls load and fails if load finds nothing.
func (l *Loader) some(place, want string, load func() error) error {
	before := len(l.found.Sets) + len(l.found.Tokens)
	if err := load(); err != nil {
		return err
	}
	if before == len(l.found.Sets)+len(l.found.Tokens) {
		return &emptyError{fmt.Sprintf("%s holds no certificates, keys, revocation lists or tokens: want %s", place, want)}
	}
	return nil
}

// emptyError reports an input that holds nothing of interest.
type emptyError struct{ text string }

func (e *emptyError) Error() string { return e.text }

// Describe returns the name of an input for messages.
func Describe(in string) string {
	if in == Stdin {
		return "standard input"
	}
	return in
}

func (l *Loader) load(ctx context.Context, in string) error {
	if in == Stdin {
		data, err := readAll(l.Stdin, maxFile)
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		return l.text(Describe(in), "", data)
	}
	info, err := os.Stat(in)
	switch {
	case err != nil && IsHost(in):
		return l.host(ctx, in)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is no file, no directory and not host:port", in)
	case err != nil:
		return err
	case info.IsDir():
		return l.directory(in)
	}
	data, err := files.Read(in, maxFile)
	if err != nil {
		return err
	}
	return l.text(in, in, data)
}

// IsHost reports whether an input has the form host:port. It names a TLS server
// unless a file of that name exists.
func IsHost(in string) bool {
	host, port, err := net.SplitHostPort(in)
	n, _ := strconv.ParseUint(port, 10, 16)
	return err == nil && host != "" && n > 0
}

func (l *Loader) host(ctx context.Context, address string) error {
	chain, err := dial.ShownChain(ctx, address, l.ServerName)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	f := verify.File{Name: address, Place: address, Role: verify.RoleCert}
	for _, c := range chain {
		f.Blocks = append(f.Blocks, certs.Block{Type: "CERTIFICATE", Cert: c})
	}
	return l.add(verify.Set{Place: address, Purpose: verify.Leaf, Files: []verify.File{f}})
}

// format is the format of a file.
type format int

const (
	unknownFormat format = iota
	pemText
	yamlText
	dumpText
	secretsText // the secrets of a dump, as meshctl pc secrets -o json prints them
	derBytes
)

// formatOf detects the format from the content alone.
func formatOf(data []byte) format {
	start := bytes.TrimLeft(data, " \t\r\n\ufeff")
	head := start[:min(len(start), 4096)]
	switch {
	case bytes.HasPrefix(start, []byte("{")) && bytes.Contains(head, []byte(`"configs"`)):
		return dumpText
	case bytes.HasPrefix(start, []byte("{")) && proxyconfig.IsSecretsResource(start):
		return secretsText
	case bytes.HasPrefix(start, []byte("{")):
		return yamlText
	case len(data) <= maxPEM && certs.FromDER(data) != nil:
		return derBytes
	case bytes.HasPrefix(data, []byte("-----BEGIN ")), bytes.Contains(data, []byte("\n-----BEGIN ")):
		return pemText
	case bytes.HasPrefix(data, []byte("kind:")), bytes.Contains(data, []byte("\nkind:")):
		return yamlText
	case bytes.Contains(data, []byte("-----BEGIN ")), certs.IsUTF16(data):
		return pemText
	}
	return unknownFormat
}

// text adds the content of an input or a document. path is its path in the file
// system, if it has one.
func (l *Loader) text(place, path string, data []byte) error {
	if err := l.count(data); err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	f, found, err := l.parse(place, place, path, data)
	if err == nil && !found {
		err = otherFormat(place, data)
	}
	if err != nil || !found {
		return err
	}
	return l.add(verify.Arrange(place, []verify.File{f}))
}

// parse reads text of any format. It returns PEM and DER as a file; it adds what
// dumps and documents hold.
func (l *Loader) parse(name, place, path string, data []byte) (f verify.File, found bool, err error) {
	if text := yamldoc.Decode(data); formatOf(text) != pemText { // programs refuse PEM with a byte order mark
		data = text
	}
	switch formatOf(data) {
	case dumpText:
		return f, false, l.dump(place, data, proxyconfig.ReadSecrets)
	case secretsText:
		return f, false, l.dump(place, data, proxyconfig.ReadSecretsResource)
	case yamlText:
		return f, false, l.documents(place, data)
	case derBytes:
		data = certs.FromDER(data)
	case pemText:
	default:
		return f, false, nil
	}
	f, err = pemFile(name, place, path, data)
	return f, true, err
}

// otherFormat returns an error for text in a known format that nothing here reads, else nil.
func otherFormat(place string, data []byte) error {
	text := bytes.TrimSpace(data)
	if len(text) == 0 {
		return fmt.Errorf("%s is empty: it holds no certificates, keys, revocation lists or tokens", place)
	}
	if plain, err := decodeText(text); err == nil && (formatOf(plain) == pemText || formatOf(plain) == derBytes) {
		return fmt.Errorf("%s is base64 of certificates or keys, as kubectl prints the data of a Secret: decode it with base64 -d", place)
	}
	var store struct { // PKCS #12
		Version int
		Content asn1.RawValue
		MAC     asn1.RawValue `asn1:"optional"`
	}
	if _, err := asn1.Unmarshal(data, &store); err == nil && store.Version == 3 {
		return fmt.Errorf("%s is PKCS #12, which no proxy reads: convert it with openssl pkcs12 -in FILE -nodes", place)
	}
	return nil
}

func (l *Loader) count(data []byte) error {
	if l.left -= int64(len(data)); l.left < 0 {
		return fmt.Errorf("the inputs have more than %d MiB in all", maxTotal>>20)
	}
	return nil
}

// pemFile parses PEM. If path is not empty, pemFile checks who may read or replace
// the file.
func pemFile(name, place, path string, data []byte) (verify.File, error) {
	if len(data) > maxPEM {
		return verify.File{}, fmt.Errorf("%s has %d bytes, more than the %d MiB of PEM that are read", place, len(data), maxPEM>>20)
	}
	f := verify.NewFile(name, place, data)
	if path != "" {
		if err := files.CheckSecret(path); err != nil {
			f.Exposed = err.Error()
		} else if err := files.CheckReplaceable(path); err != nil {
			f.Replaceable = err.Error()
		}
	}
	return f, nil
}

func (l *Loader) add(sets ...verify.Set) error {
	for _, s := range sets {
		for _, f := range s.Files {
			if l.certsLeft -= len(f.Blocks); l.certsLeft < 0 {
				return fmt.Errorf("%s: the inputs hold more than %d PEM blocks in all", f.Place, maxCerts)
			}
		}
		l.found.Sets = append(l.found.Sets, s)
	}
	return nil
}

func (l *Loader) dump(place string, data []byte, read func(io.Reader) (*proxyconfig.Secrets, error)) error {
	secrets, err := read(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	for _, s := range append(secrets.Items, secrets.Static...) {
		if len(s.PEM) == 0 {
			continue
		}
		name := fmt.Sprintf("%s: secret %s", place, s.Name)
		f, err := pemFile(s.Name, name, "", s.PEM)
		if err == nil {
			err = l.add(verify.Set{Place: name, Files: []verify.File{f}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	if r == nil {
		return nil, errors.New("there is none")
	}
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it has more than %d MiB", limit>>20)
	}
	return data, err
}
