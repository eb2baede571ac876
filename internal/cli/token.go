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

// TokenFlag is with which token status pages are read.
type TokenFlag struct{ File string }

func (o *TokenFlag) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&o.File, "token-file", "", "`File` with the token of an identity that may read status pages (default: that of a control plane of the same user on this machine)")
}

// maxToken bounds a token file, in bytes.
const maxToken = 64 << 10

// of returns the token for the status pages at an address, host:port; empty when
// there is none. read reads that of the file. Tokens go to this machine only: to
// others they would cross the network in clear.
func (o *TokenFlag) of(env *Env, address string, read func() (string, error)) (string, error) {
	local := localtoken.IsLocal(address)
	if o.File == "" {
		if _, _, err := net.SplitHostPort(address); !local || err != nil {
			return "", nil
		}
		return localtoken.Read(localtoken.Directories(env.LookupEnv), address)
	}
	if !local {
		return "", Usagef("--token-file: %s is not on this machine, and the token would cross the network in clear: forward the port to this machine, as kubectl port-forward does", address)
	}
	return read()
}

// Read reads the token of the file. It warns of a file that others may read: the
// token is out already, and it is short-lived.
func (o *TokenFlag) Read(env *Env) (string, error) {
	text, err := files.Read(o.File, maxToken)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", Usagef("--token-file: %w", err)
	case err != nil:
		return "", fmt.Errorf("--token-file: %w", err)
	}
	if err := files.CheckSecret(o.File); err != nil {
		fmt.Fprintf(env.Stderr, "warning: token file %s: %s\n", output.Escape(o.File), output.Escape(err.Error()))
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
		t.Pod = read // it goes by way of the API server
	}
	return t
}

// refusedToken is in the error of a page that wants a token, or another one.
const refusedToken = "answered 401 "

// NeedsToken returns what to do about that, for control planes of a namespace.
func (k *KubeFlags) NeedsToken(context, namespace string) string {
	flags := " -n " + namespace
	if context != "" {
		flags += " --context " + shellWord(context)
	}
	if k.kubeconfig != "" {
		flags += " --kubeconfig " + shellWord(k.kubeconfig)
	}
	return "run this as the user of the control plane on its machine, or with --token-file token, which a kubeconfig of its cluster makes:\n" +
		"  (umask 077 && kubectl create token default --audience istio-ca" + flags + " > token)"
}

// shellWord returns a word as a shell reads it.
func shellWord(s string) string {
	if plainName.MatchString(s) || strings.HasPrefix(s, "/") && plainName.MatchString(s[1:]) {
		return s
	}
	return "'" + strings.ReplaceAll(output.Escape(s), "'", `'\''`) + "'"
}
