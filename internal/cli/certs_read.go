package cli

import (
	"crypto/x509"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/input"
	"github.com/meshctl/meshctl/internal/files"
)

// Output formats beside those of package output.
const (
	formatWide        = "wide"
	formatText        = "text"
	formatJUnit       = "junit"
	formatOpenMetrics = "openmetrics"
)

// inputHelp is what the commands that read certificates say of their input.
const inputHelp = `An INPUT is a PEM file, a directory (with those below it), a Secret in YAML (the
cacerts Secret in both layouts, istio-ca-secret, kubernetes.io/tls, remote
secrets), a kubeconfig, Envoy's config dump, host:port of a TLS server, or - for
standard input. What it is, is seen from what it holds. Private keys and tokens
are never shown.`

// readOptions are the flags of the commands that read certificates.
type readOptions struct {
	inputs     []string
	serverName string
}

func (o *readOptions) bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.serverName, "server-name", "", "`Name` to ask TLS servers for (default their host)")
}

// loader checks the inputs and returns what reads them.
func (o *readOptions) loader(env *Env) (*input.Loader, error) {
	if len(o.inputs) == 0 {
		return nil, usagef("name at least one input: a file, a directory, host:port, or - for standard input")
	}
	seen := map[string]bool{}
	for _, in := range o.inputs {
		if seen[in] {
			return nil, usagef("the input %q is named twice", in)
		}
		seen[in] = true
	}
	return &input.Loader{Stdin: env.Stdin, ServerName: o.serverName}, nil
}

// maxRoots bounds the file of --roots, in bytes.
const maxRoots = 4 << 20

// readRoots reads the certificates of --roots; none when the path is empty.
func readRoots(path string) ([]*x509.Certificate, error) {
	if path == "" {
		return nil, nil
	}
	data, err := files.Read(path, maxRoots)
	if err != nil {
		return nil, err
	}
	roots, err := certs.ParseCerts(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return roots, nil
}
