package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
)

// TokenFlag holds the file of the token that reads status pages.
type TokenFlag struct{ File string }

// Bind defines the flag.
func (o *TokenFlag) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.File, "token-file", "", "`File` with the token of an identity that may read status pages (default the token of a control plane of this user on this machine)")
}

// maxToken bounds a token file, in bytes.
const maxToken = 64 << 10

// of returns the token for the status pages at host:port, empty for none. read reads
// the token of the file. Tokens go only to this machine, as the connection is in clear
// text.
func (o *TokenFlag) of(env *Env, address string, read func() (string, error)) (string, error) {
	local := localtoken.IsLocal(address)
	if o.File == "" {
		if _, _, err := net.SplitHostPort(address); !local || err != nil {
			return "", nil
		}
		return localtoken.Read(localtoken.Directories(env.LookupEnv), address)
	}
	if !local {
		return "", Usagef("--token-file: %s is not on this machine, and the token would cross the network in clear text: forward the port to this machine, as kubectl port-forward does", address)
	}
	return read()
}

// Read reads the token of the file. It only warns when other users can read the file:
// the token may have leaked already, and it is short-lived.
func (o *TokenFlag) Read(env *Env) (string, error) {
	text, err := files.Read(o.File, maxToken)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", Usagef("--token-file: %w", err)
	case err != nil:
		return "", fmt.Errorf("--token-file: %w", err)
	}
	if err := files.CheckSecret(o.File); err != nil {
		env.Warnf("token file %s: %v", o.File, err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("--token-file %s: want one token", o.File)
	}
	return token, nil
}

// Tokens returns the tokens for replicas.
func (o *TokenFlag) Tokens(env *Env) replicas.Tokens {
	read := sync.OnceValues(func() (string, error) { return o.Read(env) })
	t := replicas.Tokens{At: func(address string) (string, error) { return o.of(env, address, read) }}
	if o.File != "" {
		t.Pod = read // the connection to the API server is encrypted
	}
	return t
}

// NeedsToken returns what to do about replicas.ErrUnauthorized, for control planes of
// a namespace.
func (k *KubeFlags) NeedsToken(context, namespace string) string {
	flags := " -n " + namespace
	if context != "" {
		flags += " --context " + output.ShellWord(context)
	}
	if k.kubeconfig != "" {
		flags += " --kubeconfig " + output.ShellWord(k.kubeconfig)
	}
	return "run this as the user of the control plane on its machine, or pass --token-file token with a token from its cluster:\n" +
		"  (umask 077 && kubectl create token default --audience istio-ca" + flags + " > token)"
}
