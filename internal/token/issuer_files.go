package token

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
)

// Names of the files in an issuer's directory. A verifier needs only the last two.
const (
	KeyFile    = "key.pem"   // the signing key, PKCS #8, mode 0600
	JWKSFile   = "jwks.json" // the public keys
	IssuerFile = "issuer"    // the issuer URL, one line
)

const (
	maxKeyFile    = 64 << 10
	maxIssuerFile = 2 << 10
	// reloadInterval is the shortest time between two reads of the files. A removed key
	// may stay trusted for that time.
	reloadInterval = time.Second
)

// SaveIssuer writes the issuer to dir, and creates dir if needed. Without force it
// replaces nothing; the error then wraps fs.ErrExist.
func SaveIssuer(dir string, i *Issuer, force bool) error {
	key, err := certs.EncodeKey(i.Key())
	if err != nil {
		return fmt.Errorf("token issuer %s: %w", dir, err)
	}
	jwks, err := json.MarshalIndent(i.JWKS(), "", "  ")
	if err != nil {
		return fmt.Errorf("token issuer %s: %w", dir, err)
	}
	if err := files.CheckOutput(dir); err != nil {
		return fmt.Errorf("token issuer: %w", err)
	}
	err = files.WriteDir(dir, []files.File{
		{Name: KeyFile, Data: key, Mode: files.Secret},
		{Name: JWKSFile, Data: append(jwks, '\n'), Mode: files.Public},
		{Name: IssuerFile, Data: []byte(i.URL() + "\n"), Mode: files.Public},
	}, files.Options{Force: force})
	if err != nil {
		return fmt.Errorf("token issuer: %w", err)
	}
	return nil
}

// LoadIssuer reads the issuer that SaveIssuer wrote to dir.
func LoadIssuer(dir string) (_ *Issuer, err error) {
	defer func() {
		if err != nil {
			err = loadError(dir, err)
		}
	}()
	data, err := files.ReadSecret(filepath.Join(dir, KeyFile), maxKeyFile)
	if err != nil {
		return nil, err
	}
	signer, err := certs.ParseKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", KeyFile, err)
	}
	key, ok := signer.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: want an ECDSA P-256 key", KeyFile)
	}
	public, err := readIssuerFiles(dir)
	if err != nil {
		return nil, err
	}
	v, err := public.verifier(nil)
	if err != nil {
		return nil, err
	}
	i, err := NewIssuer(v.Issuer, key)
	if err != nil {
		return nil, err
	}
	if len(v.Keys.Key(i.KeyID())) == 0 {
		return nil, fmt.Errorf("%s does not have the key of %s, so no verifier would accept its tokens", JWKSFile, KeyFile)
	}
	return i, nil
}

func loadError(dir string, err error) error {
	hint := ""
	if errors.Is(err, fs.ErrNotExist) {
		hint = "; make one with: meshctl token issuer --out " + output.ShellWord(dir)
	}
	return fmt.Errorf("token issuer %s: %w%s", dir, err, hint)
}

// issuerFiles holds the files of a verifier.
type issuerFiles struct{ issuer, jwks []byte }

func readIssuerFiles(dir string) (issuerFiles, error) {
	issuer, err := files.Read(filepath.Join(dir, IssuerFile), maxIssuerFile)
	if err != nil {
		return issuerFiles{}, err
	}
	jwks, err := files.Read(filepath.Join(dir, JWKSFile), MaxKeySetSize)
	return issuerFiles{issuer, jwks}, err
}

func (p issuerFiles) equal(o issuerFiles) bool {
	return bytes.Equal(p.issuer, o.issuer) && bytes.Equal(p.jwks, o.jwks)
}

// verifier accepts any issuer without white space, as the issuer of a Kubernetes
// cluster need not be a URL.
func (p issuerFiles) verifier(audiences []string) (*Verifier, error) {
	fields := strings.Fields(string(p.issuer))
	if len(fields) != 1 {
		return nil, fmt.Errorf("file %s: want one line, the iss claim of the tokens", IssuerFile)
	}
	keys, err := ParseKeys(p.jwks)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", JWKSFile, err)
	}
	return &Verifier{Issuer: fields[0], Keys: keys, Audiences: audiences}, nil
}

// FileVerifier checks the tokens of an issuer whose public keys are in files. Verify
// reads the files again, at most once a second. If they are unreadable or invalid, it
// uses the last good ones. It may be used concurrently.
type FileVerifier struct {
	read      func() (issuerFiles, error)
	wrap      func(error) error // names the files
	audiences []string

	mu      sync.Mutex // guards the fields below
	last    issuerFiles
	checked time.Time
	current *Verifier
	problem error // why the last read had no effect
}

// LoadVerifier reads jwks.json and issuer from dir. Tokens must name one of the
// audiences.
func LoadVerifier(dir string, audiences []string) (*FileVerifier, error) {
	return startFileVerifier(&FileVerifier{
		audiences: audiences,
		read:      func() (issuerFiles, error) { return readIssuerFiles(dir) },
		wrap:      func(err error) error { return loadError(dir, err) },
	})
}

// LoadKeys is LoadVerifier for a known issuer with a file of keys.
func LoadKeys(issuer, file string, audiences []string) (*FileVerifier, error) {
	return startFileVerifier(&FileVerifier{
		audiences: audiences,
		read: func() (issuerFiles, error) {
			keys, err := files.Read(file, MaxKeySetSize)
			return issuerFiles{issuer: []byte(issuer), jwks: keys}, err
		},
		wrap: func(err error) error { return fmt.Errorf("keys of issuer %s: %w", issuer, err) },
	})
}

func startFileVerifier(v *FileVerifier) (*FileVerifier, error) {
	if v.reload(); v.problem != nil {
		return nil, v.problem
	}
	return v, nil
}

// Problem returns the error of the last read of the files, if any.
func (v *FileVerifier) Problem() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.problem
}

// Issuer returns the iss claim that the verifier accepts now.
func (v *FileVerifier) Issuer() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current.Issuer
}

// Verify checks a token as token.Verifier does.
func (v *FileVerifier) Verify(raw string, now time.Time) (Claims, error) {
	current, problem := v.refresh(now)
	c, err := current.Verify(raw, now)
	if err != nil && problem != nil {
		return c, errors.Join(err, fmt.Errorf("the last good keys are in use: %w", problem))
	}
	return c, err
}

func (v *FileVerifier) refresh(now time.Time) (*Verifier, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Sub(v.checked).Abs() >= reloadInterval {
		v.checked = now
		v.reload()
	}
	return v.current, v.problem
}

// reload replaces current if the files changed and are valid.
func (v *FileVerifier) reload() {
	p, err := v.read()
	if err == nil && !p.equal(v.last) {
		var next *Verifier
		if next, err = p.verifier(v.audiences); err == nil {
			v.last, v.current = p, next
		}
	}
	v.problem = nil
	if err != nil {
		v.problem = v.wrap(err)
	}
}
