package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/replicas"
)

// debugToken is with which token status pages are read.
type debugToken struct{ file string }

func (o *debugToken) bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.file, "token-file", "", "`File` with the token of an identity that may read status pages (default: that of a control plane of the same user on this machine)")
}

// maxToken bounds a token file, in bytes.
const maxToken = 64 << 10

// of returns the token for the status pages at an address, host:port; empty when
// there is none. Tokens go to this machine only: to others they would cross the
// network in clear.
func (o *debugToken) of(env *Env, address string) (string, error) {
	local := localtoken.IsLocal(address)
	if o.file == "" {
		if _, _, err := net.SplitHostPort(address); !local || err != nil {
			return "", nil
		}
		return localtoken.Read(localtoken.Directories(env.LookupEnv), address)
	}
	if !local {
		return "", usagef("--token-file: %s is not on this machine, and the token would cross the network in clear: forward the port to this machine, as kubectl port-forward does", address)
	}
	return o.read()
}

// read reads the token of the file.
func (o *debugToken) read() (string, error) {
	text, err := files.ReadSecret(o.file, maxToken)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", usagef("--token-file: %w", err)
	case err != nil:
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("--token-file %s: want one token", o.file)
	}
	return token, nil
}

// tokens are those for replicas.
func (o *debugToken) tokens(env *Env) replicas.Tokens {
	t := replicas.Tokens{At: func(address string) (string, error) { return o.of(env, address) }}
	if o.file != "" {
		t.Pod = func() (string, error) { return o.of(env, "localhost") } // by way of the API server
	}
	return t
}

// refusedToken is in the error of a page that wants a token, or another one.
const refusedToken = "answered 401 "

// needsToken is what to do about that.
const needsToken = "run this as the user of the control plane on its machine, or give --token-file the token of an identity of its system namespace, such as that of kubectl create token --audience istio-ca"
