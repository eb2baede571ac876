package kube

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// MaxAnswer is the default bound of a response of a remote API server, except for
// watches, in bytes. It fits a list of 100,000 pods.
const MaxAnswer = 512 << 20

// maxCredentialFile bounds a file that a kubeconfig names, in bytes.
const maxCredentialFile = 1 << 20

// RemoteOptions holds the options of Remote.
type RemoteOptions struct {
	remotesecret.Options
	// Timeout bounds a whole request, watches included; zero means none.
	Timeout   time.Duration
	UserAgent string
	// MaxAnswer bounds a response, except for watches, in bytes; zero means the constant
	// MaxAnswer.
	MaxAnswer int64
}

// Remote returns the access to a cluster of a remote secret. It refuses a secret that
// remotesecret.Check refuses. Connections go through dial.Guard, which also checks
// resolved addresses, follows no redirects, and bounds responses. All clients of the
// result share their connections; Close closes them.
func Remote(c *remotesecret.Cluster, o RemoteOptions) (*rest.Config, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	findings := remotesecret.Check(c, o.Options)
	if err := remotesecret.Refuse(findings); err != nil {
		return nil, err
	}
	for _, f := range findings {
		switch f.Code {
		case remotesecret.BadServer, remotesecret.BadCA, remotesecret.BadCertificate, remotesecret.BadToken:
			return nil, fmt.Errorf("invalid kubeconfig: %s (%s)", f.Reason, f.Field)
		}
	}
	allowed := func(code remotesecret.Code) bool { return o.Allow.Has(c.ID, code) }
	guard := dial.Guard{
		Loopback:  !o.InPod || allowed(remotesecret.Loopback),
		LinkLocal: allowed(remotesecret.LinkLocal),
	}
	limit := cmp.Or(o.MaxAnswer, MaxAnswer)
	proxy, err := proxyOf(c)
	if err != nil {
		return nil, err
	}
	u := &c.User
	config := &rest.Config{
		Host:            c.Server.Server,
		BearerToken:     c.BearerToken(),
		BearerTokenFile: u.TokenFile,
		Username:        u.Username,
		Password:        u.Password,
		Impersonate: rest.ImpersonationConfig{
			UserName: u.Impersonate, UID: u.ImpersonateUID, Groups: u.ImpersonateGroups, Extra: u.ImpersonateUserExtra,
		},
		QPS: qps, Burst: burst, Timeout: o.Timeout, UserAgent: o.UserAgent,
	}
	if u.Exec != nil {
		return withExec(config, c, guard, proxy, limit), nil
	}
	server, err := serverTLS(c)
	if err != nil {
		return nil, err
	}
	config.Transport, err = guard.Transport(server, proxy, limit)
	return config, err
}

// Close closes the connections of an access that Remote returned and that is no longer
// in use.
func Close(config *rest.Config) {
	if config.Transport != nil {
		CloseIdle(config.Transport)
	}
}

// CloseIdle closes idle connections. With HTTP/2 a connection becomes idle a moment
// after a cancelled request returns, without an event, so CloseIdle retries for up to 63
// ms. The idle timeout closes the others.
func CloseIdle(transport http.RoundTripper) {
	for pause := time.Millisecond; ; pause *= 2 {
		utilnet.CloseIdleConnectionsFor(transport)
		if pause > 32*time.Millisecond {
			return
		}
		time.Sleep(pause) //nolint:forbidigo // there is no event to wait for
	}
}

func proxyOf(c *remotesecret.Cluster) (*url.URL, error) {
	if c.Server.ProxyURL == "" {
		return nil, nil
	}
	proxy, err := url.Parse(c.Server.ProxyURL)
	if err != nil || proxy.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme) {
		return nil, errors.New("invalid kubeconfig: proxy-url is no URL of a proxy")
	}
	return proxy, nil
}

// serverTLS returns the TLS settings of the kubeconfig. It reads the files that the
// kubeconfig names, which the check has allowed.
func serverTLS(c *remotesecret.Cluster) (dial.ServerTLS, error) {
	t := dial.ServerTLS{Name: c.Server.TLSServerName, Insecure: c.Server.InsecureSkipTLSVerify}
	var err error
	read := func(data []byte, file string) []byte {
		if len(data) > 0 || file == "" || err != nil {
			return data
		}
		data, err = files.Read(file, maxCredentialFile)
		return data
	}
	t.Roots = read(c.Server.CertificateAuthorityData, c.Server.CertificateAuthority)
	cert := read(c.User.ClientCertificateData, c.User.ClientCertificate)
	key := read(c.User.ClientKeyData, c.User.ClientKey)
	if err != nil {
		return t, err
	}
	if len(t.Roots) == 0 {
		t.Roots = nil
	}
	if len(cert) > 0 || len(key) > 0 {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return t, errors.New("invalid kubeconfig: client certificate and key cannot be used together")
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// withExec leaves the transport to client-go, as plug-ins require.
func withExec(config *rest.Config, c *remotesecret.Cluster, guard dial.Guard, proxy *url.URL, limit int64) *rest.Config {
	server, user := &c.Server, &c.User
	config.TLSClientConfig = rest.TLSClientConfig{
		Insecure: server.InsecureSkipTLSVerify, ServerName: server.TLSServerName,
		CAData: server.CertificateAuthorityData, CAFile: server.CertificateAuthority,
		CertData: user.ClientCertificateData, CertFile: user.ClientCertificate,
		KeyData: user.ClientKeyData, KeyFile: user.ClientKey,
	}
	config.Dial = guard.DialContext
	config.Proxy = http.ProxyURL(proxy)
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return dial.Bounded(next, limit) }
	config.ExecProvider = &clientcmdapi.ExecConfig{
		APIVersion: user.Exec.APIVersion, Command: user.Exec.Command, Args: user.Exec.Args,
		InteractiveMode:  clientcmdapi.NeverExecInteractiveMode,
		StdinUnavailable: true, StdinUnavailableMessage: "the control plane has none",
	}
	for _, e := range user.Exec.Env {
		config.ExecProvider.Env = append(config.ExecProvider.Env, clientcmdapi.ExecEnvVar{Name: e.Name, Value: e.Value})
	}
	return config
}
